# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# How long a client of fabtests waits for its server.  Sourced by ci/suite/fabtests.sh, and by the copy of runfabtests.sh that
# `patient` makes.
# shellcheck shell=bash

# children PID: of all processes, since a bare system has no pgrep.
children() {
    cat /proc/[0-9]*/stat 2>/dev/null | awk -v parent="$1" '{ sub(/\(.*\)/, "-") } $4 == parent { print $1 }' || true
}

# listens PID: whether it, or a process that it has started, is a program of fabtests with a socket that listens.
listens() {
    local child comm inodes
    comm=$(cat "/proc/$1/comm" 2>/dev/null) || return 1
    if [[ $comm == fi_* ]]; then
        # Of its own network, whichever that is.
        inodes=$({ awk 'FNR > 1 && FILENAME ~ /unix$/ && $4 == "00010000" { print "socket:[" $7 "]" }
            FNR > 1 && FILENAME !~ /unix$/ && $4 == "0A" { print "socket:[" $10 "]" }' "/proc/$1/net/"{unix,tcp,tcp6}
            readlink "/proc/$1/fd/"* | sort -u; } 2>/dev/null | sort | uniq -d) || true
        [ -z "$inodes" ] || return 0
    fi
    for child in $(children "$1"); do
        listens "$child" && return 0
    done
    return 1
}

# await_server PID: until it listens or has ended. A second is enough for a provider whose endpoints listen at nothing; others get
# as long as a slow machine takes.
await_server() {
    local i most=50
    [ "${PROVIDER:-strait}" != strait ] || most=1000
    for ((i = 0; i < most; i++)); do
        if listens "$1" || ! kill -0 "$1" 2>/dev/null; then return; fi
        sleep 0.02
    done
}

# patient FROM TO: runfabtests.sh, in which a client begins as soon as its server listens, and not after a second.
patient() {
    local here
    here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
    sed -e "1a . $here/fabtests-server.sh" -e '/^function cs_test/,/^}/s/^\tsleep 1$/\tawait_server $s_pid/' "$1" >"$2"
    chmod +x "$2"
    grep -q '^.await_server' "$2"
}
