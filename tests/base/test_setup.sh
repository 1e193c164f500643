#!/usr/bin/env bash
# test_setup.sh ROOT - setup.sh: a build that was interrupted goes on, and what is installed is not installed again.

set -u
root=${1:?root of the tree}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failures=0

# same WHAT WANT GOT
same()
{
    [ "$2" = "$3" ] || { echo "FAILED: $1: want \"$2\", got \"$3\"" && failures=$((failures + 1)); }
}

# A project of its own, in a folder with blanks.
mkdir -p "$work/a b/tests/rdma-vm" "$work/bin"
cd "$work/a b" || exit 1
cp "$root/setup.sh" .
echo "project('x')" >meson.build
echo "option('tests', type: 'boolean', value: false)" >meson_options.txt
printf '#!/bin/sh\necho some-package\n' >tests/rdma-vm/rdma-vm.sh
chmod +x tests/rdma-vm/rdma-vm.sh
. ./setup.sh

# ---- the build ----------------------------------------------------------------------------------------

(build "$ROOT/build" false) 2>"$work/err"
same 'the first build' 0 $?
rm build/build.ninja # as meson leaves it that is stopped while it writes that
(build "$ROOT/build" false) 2>"$work/err"
same 'a setup that was interrupted' 0 $?
echo broken >>meson.build
(build "$work/other" false) 2>"$work/err"
same 'a setup that fails' 70 $?
sed -i '$d' meson.build
(build "$work/other" false) 2>"$work/err"
same 'and is mended' 0 $?

# ---- packages -------------------------------------------------------------------------------------------

for tool in apt-get sudo; do
    printf '#!/bin/sh\necho "$*" >>"%s/asked"\n' "$work" >"$work/bin/$tool"
    chmod +x "$work/bin/$tool"
done
PATH=$work/bin:$PATH
installed=installed debian=1 kernel='  Depends: linux-image-6'
dpkg-query() { printf %s "$installed"; }
apt-cache() { echo "$kernel"; }
is_debian() { [ -n "$debian" ]; }
uname() { echo x86_64; }
# asked WHAT - whether apt-get was, and forget it
asked()
{
    if [ -e "$work/asked" ]; then echo yes; else echo no; fi
    rm -f "$work/asked"
}

(setup_packages && CI=true && setup_machines && setup_hosts) 2>"$work/err"
same 'all is there' no "$(asked)"
[ ! -e /etc/debian_version ] || for case in 'yes,,1,  Depends: linux' 'yes,installed,1,' 'no,installed,,' 'no,,,'; do
    IFS=, read -r want installed debian kernel <<<"$case"
    (setup_machines) 2>"$work/err"
    same "machines: $case" "$want" "$(asked)"
done
installed='' debian='' kernel=''
(CI=true && setup_hosts) 2>"$work/err"
same 'a server that is missing' "$([ -e /etc/debian_version ] && echo yes || echo no)" "$(asked)"
installed=installed
(CI=true && setup_hosts) 2>"$work/err"
same 'a server that is there' no "$(asked)"

[ $failures -eq 0 ]
