#!/usr/bin/env bash
# test_setup.sh ROOT - setup.sh and check.sh: a build that was interrupted goes on, what is installed is not installed
# again, and two checks at a time count their own tests.

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
cp "$root/setup.sh" "$root/check.sh" .
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

# ---- counting -------------------------------------------------------------------------------------------

# One test, which runs another check of the same folder, where it fails at length.
cat >both.sh <<EOT
#!/bin/sh
[ -z "\${INNER-}" ] || { seq 99 && exit 1; }
INNER=1 ./check.sh >"$work/inner"
exit 0
EOT
printf '#!/bin/sh\necho "  Depends: linux"\n' >"$work/bin/apt-cache"
printf '#!/bin/sh\nprintf installed\n' >"$work/bin/dpkg-query"
chmod +x both.sh "$work/bin/apt-cache" "$work/bin/dpkg-query"
echo "test('both', find_program('both.sh'), workdir: meson.project_source_root())" >>meson.build
CI='' TMPDIR=$work ./check.sh >"$work/outer" 2>"$work/err"
same 'the check around it' '0, 1 passed, 0 failed' "$?, $(tail -n 1 "$work/outer")"
same 'the check inside it' '0 passed, 1 failed' "$(tail -n 1 "$work/inner")"
same 'nothing is left behind' '' "$(find "$work" -mindepth 1 -maxdepth 1 -name 'tmp.*')"

[ $failures -eq 0 ]
