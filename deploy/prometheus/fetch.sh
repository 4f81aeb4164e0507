#!/usr/bin/env bash
# Fetches Debian's Prometheus and Alertmanager into a folder, without installing them.
# usage: deploy/prometheus/fetch.sh FOLDER   (binaries: FOLDER/usr/bin/prometheus, ...-alertmanager)
# Debian builds Alertmanager with a fixed path for its templates; they are copied there if missing.
set -euo pipefail
folder=${1:?usage: fetch.sh FOLDER}
templates=usr/share/prometheus/alertmanager
if ! [ -e "$folder/complete" ]; then
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || {
    echo "fetch.sh: needs apt-get and dpkg-deb (Debian or Ubuntu)" >&2; exit 2; }
  mkdir -p "$folder"
  (cd "$folder"
   apt-get download -qq prometheus prometheus-alertmanager
   for package in prometheus*.deb; do dpkg-deb -x "$package" . && rm "$package"; done
   touch complete)
fi
if ! [ -e "/$templates/default.tmpl" ]; then
  mkdir -p "/$templates" && cp "$folder/$templates"/*.tmpl "/$templates/" || {
    echo "fetch.sh: /$templates cannot be written (run it as root once)" >&2; exit 2; }
fi
