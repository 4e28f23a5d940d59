#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#
# Regenerates src/bindings.rs from libfabric's public headers.
#
#   ./regen.sh <include dir> [description of the headers] [output file]
#
# <include dir> is the directory that holds rdma/fabric.h. Needs libclang (LIBCLANG_PATH if it is
# not where the loader looks) and bindgen-cli of the pinned version:
#
#   cargo install bindgen-cli --version 0.72.1 --locked
#
# Building the crate needs none of this: the output is checked in.
set -eu

pinned="bindgen 0.72.1"
bindgen=${BINDGEN:-bindgen}
here=$(cd "$(dirname "$0")" && pwd)
include=${1:?usage: regen.sh <include dir> [description] [output]}
origin=${2:-unstated}
output=${3:-$here/src/bindings.rs}

[ -f "$include/rdma/fabric.h" ] || { echo "regen.sh: no rdma/fabric.h in $include" >&2; exit 1; }
[ "$("$bindgen" --version)" = "$pinned" ] || { echo "regen.sh: need $pinned" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Macros with a 64-bit body, and the macros that are another name of one.
sed -nE 's/^#define[[:space:]]+(FI_[A-Z0-9_]+)[[:space:]]+.*[0-9a-fA-Fx]ULL.*/\1/p' \
	"$include"/rdma/*.h "$include"/rdma/providers/*.h | sort -u > "$work/wide"
sed -nE 's/^#define[[:space:]]+(FI_[A-Z0-9_]+)[[:space:]]+(FI_[A-Z0-9_]+)[[:space:]]*$/\1 \2/p' \
	"$include"/rdma/*.h "$include"/rdma/providers/*.h | while read -r alias name; do
	if grep -qx "$name" "$work/wide"; then echo "$alias"; fi
done > "$work/alias"
cat "$work/alias" >> "$work/wide"

# Types that are libc's come from libc; functions are found at run time (src/core.rs); constants
# whose width or existence depends on the header's release are in src/consts.rs.
"$bindgen" "$here/wrapper.h" \
	--rust-target 1.85 --rust-edition 2024 --use-core --ctypes-prefix libc \
	--default-enum-style consts --no-prepend-enum-name \
	--with-derive-default --anon-fields-prefix anon \
	--generate types,vars --allowlist-file '.*/rdma/.*' \
	--blocklist-type 'pthread_.*|iovec|pollfd|sockaddr|timespec|s?size_t|__.*' \
	--blocklist-item 'FI_ADDR_UNSPEC|FI_ADDR_NOTAVAIL|FI_KEY_NOTAVAIL|FI_SHARED_CONTEXT|FI_AV_AUTH_KEY' \
	--blocklist-item 'FI_MR_(UNSPEC|BASIC|SCALABLE)|FI_ORDER_(NONE|STRICT|DATA)|FI_LOCAL_MR|FI_REG_MR' \
	--blocklist-item 'FI_MPI_IGNORE_.*|FI_EP_SOCK_STREAM|FI_COLLECTIVE_OFFSET|.*_H' \
	-- -I"$include" > "$work/raw.rs"

{
	cat <<EOF
// Checked-in output of bindgen: do not edit, run regen.sh.
//
// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Derived from the public headers of libfabric (rdma/*.h, rdma/providers/*.h), which are
// Copyright (c) Intel Corporation, Cisco Systems, Inc., Hewlett Packard Enterprise, Amazon.com, Inc.
// and others, and available under a choice of the GNU General Public License version 2 or the
// OpenIB.org BSD licence.
//
// Headers: $origin
// Tool: $pinned, constants widened by regen.awk

use libc::{iovec, pollfd, pthread_cond_t, pthread_mutex_t};

EOF
	awk -f "$here/regen.awk" "$work/wide" "$work/raw.rs" | sed '1,/^$/{/^\/\* automatically/d;}'
} > "$work/bindings.rs"
rustfmt --edition 2024 --config max_width=100,use_small_heuristics=Default "$work/bindings.rs" 2>/dev/null || true
mv "$work/bindings.rs" "$output"
