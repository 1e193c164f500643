#!/bin/sh
# test_width.sh ROOT - no line of a source is wider than 100 columns.
cd "${1:?root of the tree}" || exit 1
wide=$(find kernels src tests \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.proto' \) \
    -exec env LC_ALL=C.UTF-8 grep -nE '.{101,}' /dev/null {} +)
[ -z "$wide" ] || { printf '%s\n' "$wide" && exit 1; }
