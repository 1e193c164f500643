# setup.sh - what launch.sh and check.sh share: the packages this program needs, and its build. Sourced by bash.
#
# Packages are Debian's and Ubuntu's. They are installed only if one is missing; with all of them in place nothing
# here needs the network or root.

ROOT=$(dirname "$(realpath "${BASH_SOURCE[0]}")")

PACKAGES="build-essential meson ninja-build pkg-config libcriterion-dev libprotobuf-c-dev protobuf-c-compiler
libpcre2-dev libutf8proc-dev libjansson-dev libxxhash-dev libssl-dev libhwloc-dev liburing-dev libibverbs-dev"

# Installed along with those if the distribution has them; without them something is left out: plots on report pages.
WISHED="libjs-chart.js"

say()
{
    printf '%s\n' "$*" >&2
}

# die CODE TEXT - exit codes are those of the program (README.md).
die()
{
    local code=$1

    shift
    say "error: $*"
    exit "$code"
}

missing_packages()
{
    local p

    for p in $PACKAGES; do
        [ "$(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || printf ' %s' "$p"
    done
}

setup_packages()
{
    local missing root=()

    command -v dpkg-query >/dev/null || {
        command -v meson >/dev/null || die 69 "no dpkg here: install meson, ninja and the libraries of setup.sh yourself"
        return 0
    }
    missing=$(missing_packages)
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || die 69 "packages are missing and there is no sudo; as root: apt-get install$missing"
        root=(sudo)
    fi
    say "installing$missing"
    # shellcheck disable=SC2086 # a list of words
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive sh -c "apt-get -qq update && apt-get -qq -y install \
        --no-install-recommends $missing && { apt-get -qq -y install --no-install-recommends $WISHED || true; }" >&2 || die 69 "apt-get could not install$missing"
}

# is_debian - and nothing that is made from it.
is_debian()
{
    grep -qsx 'ID=debian' /etc/os-release
}

# setup_wished WHAT PACKAGE... - packages that some tests need, if they can be had; without them those tests say what is
# missing and are skipped.
setup_wished()
{
    local what=$1 p missing='' root=()

    shift
    [ -e /etc/debian_version ] || return 0
    for p in "$@"; do
        [ "$(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing="$missing $p"
    done
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || return 0
        root=(sudo)
    fi
    # a list without Debian's kernel is none, or an old one
    if [ -n "$missing" ] || { is_debian && ! apt-cache depends linux-image-amd64 2>/dev/null | grep -q Depends; }; then
        say "installing for $what:$missing"
        # shellcheck disable=SC2086 # a list of words
        "${root[@]}" env DEBIAN_FRONTEND=noninteractive sh -c "apt-get -qq update && apt-get -qq -y install \
            --no-install-recommends $missing" >&2 || say "apt-get could not install$missing: $what are skipped"
    fi
}

# setup_machines - what the virtual machines of tests/rdma-vm are made of; their kernel is a package of Debian alone.
setup_machines()
{
    [ "$(uname -m)" = x86_64 ] && is_debian || return 0
    # shellcheck disable=SC2046 # a list of words
    setup_wished "the RDMA tests" $("$ROOT/tests/rdma-vm/rdma-vm.sh" deps)
}

# setup_hosts - an ssh server for the test of launch.sh across two machines. For CI alone: nobody else gets one by a test.
setup_hosts()
{
    [ "${CI-}" != true ] || setup_wished "the tests of two machines" openssh-server openssh-client iproute2
}

# build_dir NAME [PROGRAM] - a folder to build in that this user can write: in the checkout, else in
# the cache. Somebody else's build in the checkout serves to run PROGRAM if no source is newer.
build_dir()
{
    local dir=$ROOT/$1 program=${2-}

    if [ -w "$dir" ] || { [ ! -e "$dir" ] && [ -w "$ROOT" ]; }; then
        printf '%s\n' "$dir"
    elif [ -n "$program" ] && [ -x "$dir/$program" ] && [ -z "$(find "$ROOT/src" "$ROOT/kernels" \
        "$ROOT/meson.build" -type f -newer "$dir/$program" -print -quit)" ]; then
        printf '%s\n' "$dir"
    else
        printf '%s\n' "${XDG_CACHE_HOME:-$HOME/.cache}/tandem/$1-$(printf %s "$ROOT" | cksum | cut -d' ' -f1)"
    fi
}

# build DIR TESTS [MESON OPTION]... - quiet unless it fails; of the targets only those of BUILD_ONLY, if it is set.
BUILD_ONLY=()
build()
{
    local dir=$1 tests=$2 log lock

    shift 2
    [ ! -e "$dir" ] || [ -w "$dir" ] || return 0 # build_dir has found it good
    mkdir -p "$dir" || die 73 "cannot write $dir"
    log=$dir/build.log
    exec {lock}>"$dir/lock" || die 73 "cannot write $dir"
    flock "$lock" # ninja does not see another one in its folder
    if [ ! -e "$dir/build.ninja" ]; then
        say "configuring $dir"
        rm -rf "$dir/meson-private" # of a setup that was interrupted: meson would take it for a whole one
        meson setup "$dir" "$ROOT" -Dtests="$tests" "$@" >"$log" 2>&1 || {
            cat "$log" >&2
            rm -f "$dir/build.ninja"
            die 70 "meson setup failed"
        }
    elif [ "$tests" = true ]; then
        meson configure "$dir" -Dtests=true >"$log" 2>&1 || {
            cat "$log" >&2
            die 70 "meson configure failed"
        }
    fi
    say "building; the first time takes minutes, with nvcc many: $log shows how far it is"
    ninja -C "$dir" ${BUILD_ONLY[@]+"${BUILD_ONLY[@]}"} >"$log" 2>&1 || {
        cat "$log" >&2
        die 70 "the build failed"
    }
    exec {lock}>&-
}
