// The vendored view library, and the few helpers that every part of the page uses.
import {
  html, render, Component, useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback,
} from "./vendor/preact-htm.js";

export { html, render, Component, useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback };

/** A component that renders again only if one of its properties is another value. */
export function memo(view) {
  return class extends Component {
    shouldComponentUpdate(next) {
      const now = this.props;
      const keys = Object.keys(next);
      return keys.length !== Object.keys(now).length || keys.some((key) => next[key] !== now[key]);
    }
    render(props) {
      return view(props);
    }
  };
}

/** Renders a component that uses hooks inside of `memo`. */
export const steady = (view) => memo((props) => html`<${view} ...${props} />`);

export const classes = (...names) => names.filter(Boolean).join(" ");
