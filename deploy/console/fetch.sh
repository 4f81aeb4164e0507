#!/usr/bin/env bash
# Fetches Debian's Chromium, with the libraries that this machine lacks, and axe-core into a folder,
# without installing them.
# usage: deploy/console/fetch.sh FOLDER   (browser: FOLDER/chromium, checks: FOLDER/axe.js)
set -euo pipefail
folder=${1:?usage: fetch.sh FOLDER}
axe=4.14.1
axe_sha256=29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c
mkdir -p "$folder" && cd "$folder"
if ! [ -x chromium ]; then
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || {
    echo "fetch.sh: needs apt-get and dpkg-deb (Debian or Ubuntu)" >&2; exit 2; }
  if command -v chromium >/dev/null; then
    ln -sf "$(command -v chromium)" chromium
  else
    packages=$(apt-get install --print-uris -qq -y --no-install-recommends chromium |
      sed -nE "s/^'.*' ([^_]+)_.*/\1/p")
    apt-get download -qq $packages
    for package in ./*.deb; do dpkg-deb -x "$package" . && rm "$package"; done
    libraries=$(echo "$PWD"/usr/lib/*-linux-gnu)
    cat >chromium.new <<EOF
#!/bin/sh
LD_LIBRARY_PATH=$libraries:$libraries/pulseaudio exec "$PWD/usr/lib/chromium/chromium" "\$@"
EOF
    chmod +x chromium.new && mv chromium.new chromium
  fi
fi
if ! [ -f axe.js ]; then
  command -v npm >/dev/null || { echo "fetch.sh: axe-core needs npm" >&2; exit 3; }
  npm pack --silent "axe-core@$axe" >/dev/null
  tar -xzf "axe-core-$axe.tgz" package/axe.min.js && rm "axe-core-$axe.tgz"
  echo "$axe_sha256  package/axe.min.js" | sha256sum --check --quiet
  mv package/axe.min.js axe.js && rmdir package
fi
