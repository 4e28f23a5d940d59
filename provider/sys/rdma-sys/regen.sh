#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#
# Regenerates src/bindings.rs from libibverbs' public headers.
#
#   ./regen.sh <include dir> [description of the headers] [output file]
#
# <include dir> holds infiniband/verbs.h, infiniband/verbs_api.h and infiniband/ib_user_ioctl_verbs.h. Needs libclang
# (LIBCLANG_PATH if it is not where the loader looks) and bindgen-cli of the pinned version:
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

[ -f "$include/infiniband/verbs.h" ] || { echo "regen.sh: no infiniband/verbs.h in $include" >&2; exit 1; }
[ "$("$bindgen" --version)" = "$pinned" ] || { echo "regen.sh: need $pinned" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Types that are libc's come from libc; functions are found at run time (src/library.rs). Flow steering and
# counters have no caller here: their constants are left out.
"$bindgen" "$here/wrapper.h" \
	--rust-target 1.85 --rust-edition 2024 --use-core --ctypes-prefix libc \
	--default-enum-style consts --no-prepend-enum-name \
	--with-derive-default --anon-fields-prefix anon \
	--generate types,vars \
	--allowlist-type 'ibv_.*|_compat_ibv_port_attr|verbs_context' --allowlist-var 'IBV_.*' \
	--blocklist-type '(__)?pthread_.*|__time_t|__syscall_.*|timespec|s?size_t' \
	--blocklist-item 'IBV_FLOW_.*|IBV_COUNTER_.*|_IBV_.*' \
	-- -I"$include" > "$work/raw.rs"

{
	cat <<EOF
// Checked-in output of bindgen: do not edit, run regen.sh.
//
// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//
// Derived from the public headers of libibverbs (infiniband/verbs.h, infiniband/verbs_api.h,
// infiniband/ib_user_ioctl_verbs.h), which are Copyright (c) Topspin Communications, Intel Corporation,
// Cisco Systems, Inc., PathScale, Inc., Mellanox Technologies, Ltd. and others, and available under
// a choice of the GNU General Public License version 2 or the OpenIB.org BSD licence.
//
// Headers: $origin
// Tool: $pinned

use libc::{pthread_cond_t, pthread_mutex_t, timespec};

EOF
	sed '1,/^$/{/^\/\* automatically/d;}' "$work/raw.rs"
} > "$work/bindings.rs"
rustfmt --edition 2024 --config max_width=100,use_small_heuristics=Default "$work/bindings.rs" 2>/dev/null || true
mv "$work/bindings.rs" "$output"
