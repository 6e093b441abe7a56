#!/usr/bin/env bash
# Puts mermaid, which draws the diagrams, beside the site's own scripts: 3.5 MB that no one writes
# here, so not in git. Always this version, and only if its sum is right.
set -euo pipefail
cd "$(dirname "$0")/../.."

version=11.17.2
sum=581ed7d74bd9048d0e3a91363927d72ef22942d7722546b27f7cc29e35390eb8
target=docs/assets/javascripts/mermaid.min.js

right() { echo "$sum  $1" | sha256sum --check --status 2>/dev/null; }
right "$target" && exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
package=$work/mermaid-$version.tgz
if command -v npm >/dev/null; then
    # Without a network npm would try again for minutes.
    (cd "$work" && npm pack --silent --fetch-retries=0 "mermaid@$version" >/dev/null) || true
fi
url=https://registry.npmjs.org/mermaid/-/mermaid-$version.tgz
[[ -s $package ]] ||
    curl --fail --silent --show-error --location --connect-timeout 30 --max-time 300 \
        --output "$package" "$url" ||
    { echo "cannot get mermaid $version: it takes npm or curl, and a way to $url" >&2; exit 1; }
tar -xzf "$package" -C "$work" package/dist/mermaid.min.js
right "$work/package/dist/mermaid.min.js" ||
    { echo "mermaid $version is not the file it was: expected sha256 $sum" >&2; exit 1; }
mv "$work/package/dist/mermaid.min.js" "$target"
chmod 644 "$target"
