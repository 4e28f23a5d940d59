#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# The guest of ci/suite/guest rdma, once its root is Debian's: its first process. The words of the kernel's parameter strait= are the
# checks that it makes. Its one soft RDMA device has no switch and no other host: both processes of a check use it.
# shellcheck disable=SC2030,SC2031
export PATH=/strait/bin:/usr/bin:/usr/sbin HOME=/tmp
export FI_PROVIDER_PATH=/strait FI_STRAIT_LINKS='ofi:verbs;ofi_rxm' FI_STRAIT_TCP_TIMEOUT=5000
# That of soft RDMA's completion queues is 16384 entries at most, which rxm exceeds for its default of 256 peers.
export FI_UNIVERSE_SIZE=16
# The longest message of tests/hosts/talk.c: soft RDMA is slow under emulation.
export LONGEST=1000000
# The layer rxm finds verbs by the core, which has to be named to it, and programs get Strait alone.
export FI_PROVIDER='strait,verbs;strait'

# A word of the kernel's command line.
of_kernel() { sed -n "s/.*\b$1=\([^ ]*\).*/\1/p" /proc/cmdline; }
# The number of this guest, if there are two.
far=$(of_kernel far)
address=10.9.0.$((${far:-0} + 1))

mount -t tmpfs none /tmp
mount -t tmpfs none /run
mkdir -p /dev/shm /dev/pts
mount -t tmpfs none /dev/shm
mount -t devpts none /dev/pts
# Processes that poll share one processor: short slices spare what each polls for nothing.
mount -t debugfs none /sys/kernel/debug
echo HRTICK > /sys/kernel/debug/sched/features
echo 100000 > /sys/kernel/debug/sched/base_slice_ns
echo "guest$far" > /proc/sys/kernel/hostname
ip link set lo up
echo "guest: $(uname -r), up for $(cut -d' ' -f1 /proc/uptime) s"

# report NAME STATUS FILE...: the line of a check, after what its processes printed.
report() {
    local name=$1 status=$2; shift 2
    tail -q -n 40 "$@" | cut -c 1-300 | sed 's/^/    /'
    if [ "$status" = 0 ]; then
        echo "ok $name ($((SECONDS - begun)) s)"
    else
        echo "FAILED $name (status $status after $((SECONDS - begun)) s)"
        dmesg | tail -n 8 | sed 's/^/    kernel: /'
    fi
}

# The device is there, with an interface whose packets hold a page.
add_device() {
    ip link add dummy0 type dummy
    ip link set dummy0 mtu 4500 up
    ip addr add $address/24 dev dummy0
    rdma link add rxe0 type rxe netdev dummy0
}

# Of two guests: that of the network card.
add_far_device() {
    until [ -e /sys/class/net/eth0 ]; do sleep 0.1; done
    ip link set eth0 mtu 4500 up
    ip addr add "$address/24" dev eth0
    rdma link add rxe0 type rxe netdev eth0
}

# Both guests have come here.
both_at() {
    : > "/meet/$1.$far"
    until [ -e "/meet/$1.$((1 - far))" ]; do sleep 0.1; done
}

fresh() { rm -rf /tmp/d; mkdir /tmp/d; begun=$SECONDS; }

# pair LIMIT mode...: both sides of tests/hosts/talk.c, whose process ids are $one and $two.
pair() {
    local limit=$1; shift
    timeout -s KILL "$limit" talk 0 /tmp/d "$@" > /tmp/d/log.0 2>&1 & one=$!
    timeout -s KILL "$limit" talk 1 /tmp/d "$@" > /tmp/d/log.1 2>&1 & two=$!
}

# Both have ended, each with success.
both_end() {
    local status=0
    wait "$one" || status=$?
    wait "$two" || status=$?
    return $status
}

check_provider() {
    local status=0
    fresh
    env -u FI_PROVIDER -u FI_PROVIDER_PATH fi_info -p 'verbs;ofi_rxm' > /tmp/d/info 2>&1 || status=$?
    grep -q '^provider: verbs;ofi_rxm' /tmp/d/info || status=1
    sed -n 1,6p /tmp/d/info > /tmp/d/log
    report "fi_info lists verbs;ofi_rxm" $status /tmp/d/log
}

# Contents of messages, RMA and atomics, and what FI_STRAIT_REPORT says of their way.
check_exchange() {
    local status=0 side
    fresh
    FI_STRAIT_REPORT=yes pair 100 exchange
    both_end || status=$?
    for side in 0 1; do
        grep -q '^strait:   1 of 1 peer: ofi verbs;ofi_rxm (rxe0,.* long payloads read by their receiver' /tmp/d/log.$side || status=2
        grep -q '^strait:   network  ' /tmp/d/log.$side || status=3
        grep -q '^strait:   network RMA ' /tmp/d/log.$side || status=4
    done
    report "messages, RMA and atomics with their contents, long ones by RMA of verbs" $status /tmp/d/log.?
    # A link without reads has no such line.
    status=0
    fresh
    FI_STRAIT_LINKS=tcp FI_STRAIT_REPORT=yes pair 100 exchange
    both_end || status=$?
    grep -q '^strait:   network  ' /tmp/d/log.0 || status=3
    if grep -q 'network RMA' /tmp/d/log.?; then status=4; fi
    report "the same over tcp goes in frames alone" $status /tmp/d/log.?
}

# fabtest PROGRAM argument...: a server and a client of fabtests.
fabtest() {
    local status=0 server
    fresh
    timeout -s KILL 90 "$@" -p strait -s $address > /tmp/d/log.0 2>&1 & server=$!
    # The server listens on fabtests' port for the client's first connection: 9228, in hexadecimal.
    until grep -q ':240C .* 0A ' /proc/net/tcp || ! kill -0 $server 2> /dev/null; do sleep 0.2; done
    timeout -s KILL 90 "$@" -p strait $address > /tmp/d/log.1 2>&1 || status=$?
    wait $server || status=$?
    report "fabtests $*" $status /tmp/d/log.?
}

# Without -S fabtests registers memory for 64 of the longest messages, more than the 1 GiB that soft RDMA takes.
check_fabtests() {
    fabtest fi_rdm_pingpong -I 5 -v
    fabtest fi_rdm_tagged_pingpong -I 5 -v
    fabtest fi_rdm_tagged_bw -I 5 -v
    fabtest fi_rma_bw -e rdm -o write -I 5 -S 1000000 -v
    fabtest fi_rma_bw -e rdm -o read -I 5 -S 1000000 -v
    # Its data has 64 bits, and goes in frames.
    fabtest fi_rma_bw -e rdm -o writedata -I 5 -S 4000 -v
    fabtest fi_rdm_atomic -I 2 -o all -v
}

# going: both sides say that they move data.
going() {
    local i
    for ((i = 0; i < 150; i++)); do
        if [ -e /tmp/d/going.0 ] && [ -e /tmp/d/going.1 ]; then return 0; fi
        sleep 0.2
    done
    echo "they did not begin" >> /tmp/d/log.0
    return 1
}

# kill -9 of either side: the other's operation ends with an error.
check_kill() {
    local status victim
    for victim in 0 1; do
        fresh
        status=0
        pair 80 stream 60
        going || status=1
        begun=$SECONDS
        pkill -KILL -f "^talk $victim "
        if [ $victim = 0 ]; then wait $one; wait $two || status=$?; else wait $two; wait $one || status=$?; fi
        grep -q 'then: ' /tmp/d/log.$((1 - victim)) || status=2
        [ $((SECONDS - begun)) -lt 20 ] || status=3
        report "an operation ends with an error where its peer is killed ($victim)" $status /tmp/d/log.?
    done
}

# The device is removed: both sides get an error, and with a new device the next processes work.
check_remove() {
    local status=0 side
    fresh
    pair 100 stream 80
    going || status=1
    begun=$SECONDS
    timeout -s KILL 20 rdma link del rxe0 || status=4
    both_end || status=$?
    for side in 0 1; do grep -q 'then: ' /tmp/d/log.$side || status=2; done
    report "operations end with an error where the device is removed" $status /tmp/d/log.?
    status=0
    fresh
    rdma link add rxe0 type rxe netdev dummy0 || status=5
    pair 100 exchange
    both_end || status=$?
    report "a device that was removed and added again is used" $status /tmp/d/log.?
}

# The port is down for 15 s: soft RDMA ends its queue pairs as soon as it is down for 0.5 s. Both ends get an error, and the next processes work.
check_verbs_down() (
    local status=0 side
    export FI_STRAIT_LINKS=verbs
    fresh
    pair 100 stream 80
    going || status=1
    ip link set dummy0 down
    sleep 15
    ip link set dummy0 up
    both_end || status=$?
    for side in 0 1; do grep -q 'then: ' /tmp/d/log.$side || status=2; done
    report "operations end with an error where the port is down for 15 s" $status /tmp/d/log.?
    status=0
    fresh
    pair 100 exchange
    both_end || status=$?
    report "a port that was down is used" $status /tmp/d/log.?
)

# Both ends in one thread: times by the clock, which counts instructions, the kernel's too. UCX connects by UD, of which it takes nothing
# here where it compares destination addresses.
check_ends() (
    local type provider links status=0
    local what=(200 ping 64 ping 65536 ping 1048576 write 8)
    fresh
    while read -r type provider links; do
        of_way "$provider" "$links"
        echo "$type $provider $links"
        timeout -s KILL 20 ends "$provider" "$type" "${what[@]}" put 8 2>&1 || status=$?
    done <<< "$(ways)"
    echo "libibverbs"
    timeout -s KILL 20 ends_verbs 200 ping 64 ping 65536 write 8 put 8 2>&1 || status=$?
    echo "UCX rc"
    UCX_NET_DEVICES=rxe0:1 UCX_TLS=rc_v,ud_v UCX_UD_VERBS_ETH_DGID_CHECK=n timeout -s KILL 20 ends_ucp "${what[@]}" 2>&1 || status=$?
    report "both ends in one thread" $status /dev/null
)

# The ways by which two ends have the device here: "TYPE PROVIDER LINKS", of which the last is for Strait.
ways() {
    echo "rdm strait verbs
rdm verbs;ofi_rxm -
msg verbs -"
}
of_way() {
    export NODE=$address FI_STRAIT_LINKS=$2
    if [ "$1" = strait ]; then export FI_PROVIDER='strait,verbs;strait'; else export FI_PROVIDER=verbs; fi
}

# valgrind is a script of a shell that the root lacks.
# counted NAME COMMAND...: instructions of a message in user space, by callgrind, which does not see the kernel's.
counted() {
    local name=$1 status=0; shift
    rm -f /tmp/d/cg*
    timeout -s KILL 240 valgrind.bin --tool=callgrind "--toggle-collect=counted_*" --callgrind-out-file=/tmp/d/cg "$@" > /tmp/d/out 2> /tmp/d/err || status=$?
    mawk -v name="$name" -v file=/tmp/d/out '
        /^summary:|^totals:/ { n = $2 } END { getline line < file; split(line, of, " ")
            if (of[1] != "count" || !n) exit 1
            printf "%s: %d instructions a message of %s bytes, %d messages, %d polls of receivers\n", name, n / of[3], of[2], of[3], of[4] }' /tmp/d/cg.1 ||
        { tail -n 5 /tmp/d/err; return 1; }
    return $status
}

check_instructions() (
    local type provider links status=0
    fresh
    while read -r type provider links; do
        of_way "$provider" "$links"
        counted "$type $provider $links" ends "$provider" "$type" 200 count 64 || status=$?
    done <<< "$(ways)"
    counted libibverbs ends_verbs 200 count 64 || status=$?
    report "user-space instructions of a message" $status /dev/null
)

check_instructions_ucx() (
    local status=0
    fresh
    export UCX_NET_DEVICES=rxe0:1 UCX_TLS=rc_v,ud_v UCX_UD_VERBS_ETH_DGID_CHECK=n
    counted "UCX rc" ends_ucp 200 count 64 || status=$?
    report "user-space instructions of a message by UCX" $status /dev/null
)

# peers MANY: one endpoint that connects to many, which another process has. rxm has room in its queue for all messages of FI_UNIVERSE_SIZE
# peers, and soft RDMA's have 16 384 entries at most.
peers() (
    local many=$1 type provider links status=0 one
    fresh
    export FI_UNIVERSE_SIZE=$many FI_OFI_RXM_MSG_TX_SIZE=8 FI_OFI_RXM_MSG_RX_SIZE=8
    # An endpoint of Strait's has 17 of its own, and one for each peer.
    ulimit -n 65536
    while read -r type provider links; do
        if [ "$type" = msg ]; then continue; fi
        of_way "$provider" "$links"
        one=0
        timeout -k 5 $((many > 256 ? 600 : 120)) peers "$provider" "$many" > /tmp/d/log 2>&1 || one=$?
        echo "$provider $links: $(tail -n 1 /tmp/d/log | cut -c 1-200) (status $one)"
        # What other ones do is reported alone.
        [ "$provider" != strait ] || status=$one
    done <<< "$(ways)"
    report "$many peers of one endpoint" $status /dev/null
)
check_peers_16() { peers 16; }
check_peers_64() { peers 64; }
check_peers_256() { peers 256; }
check_peers_1000() { peers 1000; }
check_peers_ucx_16() (
    local status=0
    fresh
    export UCX_NET_DEVICES=rxe0:1 UCX_TLS=rc_v,ud_v UCX_UD_VERBS_ETH_DGID_CHECK=n
    timeout -k 5 120 peers_ucp 16 > /tmp/d/log 2>&1 || status=$?
    report "16 peers of one worker of UCX" $status /tmp/d/log
)

# The link verbs: the device by libibverbs alone, without a provider below.
check_verbs() {
    local status=0 side
    fresh
    FI_STRAIT_LINKS=verbs FI_STRAIT_REPORT=yes pair 100 exchange
    both_end || status=$?
    for side in 0 1; do
        grep -q "^strait:   1 of 1 peer: verbs verbs (rxe0 port 1, GID [0-9]* $address" /tmp/d/log.$side || status=2
        grep -q '^strait:   network  ' /tmp/d/log.$side || status=3
        grep -q '^strait:   network RMA ' /tmp/d/log.$side || status=4
    done
    # Frames carry what messages have below 64 KiB: writes with data, and their data, are requests of the device.
    for side in 0 1; do grep -Eq '^strait:   network  *out +[0-9]+ +[0-9]{1,2}(\.[0-9])? KiB' /tmp/d/log.$side || status=5; done
    report "messages, RMA, writes with data and atomics with their contents, by the link verbs" $status /tmp/d/log.?
}

# Soft RoCE copies wrong bytes on demand, which the link finds out: the same bytes come by memory that is pinned for each access.
check_verbs_on_demand() {
    local status=0 side
    fresh
    FI_STRAIT_LINKS=verbs FI_STRAIT_VERBS_ON_DEMAND=yes FI_STRAIT_LOG=info FI_STRAIT_REPORT=yes pair 100 exchange
    both_end || status=$?
    for side in 0 1; do
        grep -q 'memory of System is not registered by on demand: what a transfer of memory on demand has brought: Bad message' /tmp/d/log.$side || status=2
        grep -q '^strait:   network RMA ' /tmp/d/log.$side || status=4
    done
    grep -h 'on demand' /tmp/d/log.? > /tmp/d/log
    report "the same on demand, which soft RoCE is refused" $status /tmp/d/log
}

# Takes the processor for 0.3 s of each 0.36 s, also from what sends and answers in the kernel.
take_processor() {
    local end
    while true; do
        end=$((${EPOCHREALTIME/./} + 300000))
        while ((${EPOCHREALTIME/./} < end)); do :; done
        sleep 0.06
    done
}

# Answers come later than the device waits for them, which has it send again: nothing is lost, and no connection.
check_verbs_late() {
    local status=0 busy before now counter=/sys/class/infiniband/rxe0/ports/1/hw_counters/completer_retry_err
    fresh
    before=$(cat $counter)
    export -f take_processor
    chrt -f 50 bash -c take_processor & busy=$!
    # An acknowledgement is waited for 0.27 s.
    FI_STRAIT_LINKS=verbs FI_STRAIT_TCP_TIMEOUT=2000 FI_STRAIT_LOG=info pair 100 exchange
    both_end || status=$?
    kill $busy
    wait $busy 2> /dev/null
    now=$(cat $counter)
    echo "sent again: $((now - before))" >> /tmp/d/log.1
    [ "$now" -gt "$before" ] || status=2
    report "the same where answers are late and the device sends again" $status /tmp/d/log.?
}

check_verbs_fabtests() { FI_STRAIT_LINKS=verbs check_fabtests; }
check_verbs_kill() {
    local status=0
    FI_STRAIT_LINKS=verbs check_kill
    fresh
    FI_STRAIT_LINKS=verbs pair 80 reads 60
    until [ -e /tmp/d/going.0 ] || ! kill -0 $one 2> /dev/null; do sleep 0.2; done
    begun=$SECONDS
    pkill -KILL -f "^talk 1 "
    wait $two
    wait $one || status=$?
    grep -q 'then: ' /tmp/d/log.0 || status=2
    [ $((SECONDS - begun)) -lt 20 ] || status=3
    report "a read ends with an error where its target is killed" $status /tmp/d/log.?
}
check_verbs_remove() { FI_STRAIT_LINKS=verbs check_remove; }

# Open MPI, two ranks, by its BTL of libfabric. With its MTL, MPI_Win_create finds no component for windows (5.0.7).
check_mpi() {
    local status=0
    fresh
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 FI_STRAIT_REPORT=yes \
        timeout -s KILL 120 mpirun.openmpi -n 2 --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 \
        --mca pml ob1 --mca btl ofi,self --mca btl_ofi_mode 2 --mca osc rdma --mca btl_ofi_provider_include strait \
        --mca opal_common_ofi_provider_include strait exchange > /tmp/d/log 2>&1 || status=$?
    grep -q '^exchange ok' /tmp/d/log || status=3
    [ "$(grep -c 'peer: ofi verbs;ofi_rxm' /tmp/d/log)" = 2 ] || status=4
    report "Open MPI, two ranks: tests/mpi/exchange.c" $status /tmp/d/log
}

# The link verbs over soft iWARP, whose queue pairs librdmacm connects: messages, RMA and atomics, all by messages of the device, and either
# process killed.
check_iwarp() (
    local status=0 side
    fresh
    insmod /strait/siw.ko
    ip link add dummy1 type dummy
    ip link set dummy1 mtu 4500 up
    ip addr add 10.9.1.1/24 dev dummy1
    rdma link add siw0 type siw netdev dummy1
    # Soft RoCE would come before it.
    export FI_STRAIT_VERBS_DEVICE=siw0
    export FI_STRAIT_LINKS=verbs FI_STRAIT_LOG=warn NODE=10.9.1.1
    FI_STRAIT_REPORT=yes pair 100 exchange
    both_end || status=$?
    for side in 0 1; do
        grep -q '^strait:   1 of 1 peer: verbs verbs (siw0 port 1.*10.9.1.1, .*iWARP: memory goes in frames' /tmp/d/log.$side || status=2
        grep -Eq '^strait:   network  *out +[0-9]+ +[0-9.]+ MiB' /tmp/d/log.$side || status=3
    done
    report "messages, RMA and atomics with their contents, by soft iWARP" $status /tmp/d/log.?
    check_kill
)

# Two guests: a process of each, by the device.
check_far_verbs() {
    local status=0
    fresh
    mkdir -p /meet/exchange
    both_at verbs
    NODE=$address FI_STRAIT_LINKS=verbs FI_STRAIT_LOG=warn FI_STRAIT_REPORT=yes timeout -s KILL 300 talk "$far" /meet/exchange exchange > /tmp/d/log 2>&1 || status=$?
    grep -q "^strait:   1 of 1 peer: verbs verbs (rxe0 port 1, GID [0-9]* $address" /tmp/d/log || status=2
    grep -q '^strait:   network RMA  *out  *[0-9][0-9]*  *[1-9]' /tmp/d/log || status=4
    report "two guests: messages, RMA and atomics with their contents, by the link verbs" $status /tmp/d/log
    # The other one's process may not have ended yet.
    both_at verbs_end
}

# 1 000 queue pairs, and the 1 000 that they are connected to.
check_many() {
    local status=0
    fresh
    timeout -s KILL 200 many 1000 > /tmp/d/log 2>&1 || status=$?
    report "1000 pairs of queue pairs: a message of each" $status /tmp/d/log
}

# put_agent CHECK: in place of ssh, for Open MPI's launcher: HOST COMMAND..., which the other guest finds where both meet, and runs. What a
# check before has left there has another name.
put_agent() {
    sed "s/CHECK/$1/" > /tmp/agent << 'AGENT'
#!/bin/bash
shift
meet=/meet/CHECK
echo "$*" > $meet.new
mv $meet.new $meet.command
until [ -e $meet.launched ]; do sleep 0.1; done
AGENT
    chmod 755 /tmp/agent
}

# Open MPI, a rank in each of two guests, by its BTL of libfabric and the link verbs.
check_far_mpi() (
    local status=0
    fresh
    export FI_STRAIT_LINKS=verbs FI_STRAIT_REPORT=yes
    # The launcher's daemon looks for it in both.
    put_agent mpi
    both_at mpi
    if [ "$far" = 0 ]; then
        OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
            timeout -s KILL 300 mpirun.openmpi --prtemca plm_ssh_agent /tmp/agent --host guest0:1,guest1:1 -n 2 --map-by node --bind-to none \
            -x FI_STRAIT_LINKS -x FI_STRAIT_REPORT -x FI_PROVIDER -x FI_PROVIDER_PATH --mca mpi_yield_when_idle 1 \
            --mca pml ob1 --mca btl ofi,self --mca btl_ofi_mode 2 --mca osc rdma --mca btl_ofi_provider_include strait \
            --mca opal_common_ofi_provider_include strait --leave-session-attached bash -c 'echo "a rank of $(uname -n)" && exec exchange' > /tmp/d/log 2>&1 || status=$?
        grep -q '^exchange ok' /tmp/d/log || status=3
        [ "$(grep -c 'peers: verbs verbs (rxe0' /tmp/d/log)" = 2 ] || status=4
        [ "$(grep -c '^strait:   network RMA  *out  *[0-9][0-9]*  *[1-9]' /tmp/d/log)" = 2 ] || status=6
        [ "$(grep '^a rank of guest[01]$' /tmp/d/log | sort -u | wc -l)" = 2 ] || status=5
        : > /meet/mpi.launched
        : > /meet/mpi.over
    else
        until [ -e /meet/mpi.command ] || [ -e /meet/mpi.over ]; do sleep 0.1; done
        if [ -e /meet/mpi.command ]; then bash -c "$(cat /meet/mpi.command)" > /tmp/d/log 2>&1 & fi
        : > /meet/mpi.launched
        until [ -e /meet/mpi.over ]; do sleep 0.5; done
    fi
    report "two guests: Open MPI, a rank of each: tests/mpi/exchange.c" $status /tmp/d/log
    both_at mpi_end
)

# UCX rc between two guests, by Open MPI's PML of UCX: whether its connections are made, by UD, or end by UCX's timeout, which the line says. No
# other transport is there to go by. The other guest says nothing of it.
check_far_ucx() (
    local status=0 how
    fresh
    export UCX_TLS=rc_v,ud_v UCX_NET_DEVICES=rxe0:1
    put_agent ucx
    both_at ucx
    if [ "$far" = 0 ]; then
        OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
            timeout -s KILL 240 mpirun.openmpi --prtemca plm_ssh_agent /tmp/agent --host guest0:1,guest1:1 -n 2 --map-by node --bind-to none \
            -x UCX_TLS -x UCX_NET_DEVICES --mca mpi_yield_when_idle 1 --mca pml ucx --mca osc ucx --mca btl self \
            --leave-session-attached exchange > /tmp/d/log 2>&1 || status=$?
        if [ $status = 0 ] && grep -q '^exchange ok' /tmp/d/log; then
            how=connects
        elif grep -q 'unhandled timeout error' /tmp/d/log; then
            how="ends by its unhandled timeout error" status=0
        else
            how="ends otherwise" status=3
        fi
        report "two guests: UCX rc $how" $status /tmp/d/log
        : > /meet/ucx.launched
        : > /meet/ucx.over
    else
        until [ -e /meet/ucx.command ] || [ -e /meet/ucx.over ]; do sleep 0.1; done
        if [ -e /meet/ucx.command ]; then bash -c "$(cat /meet/ucx.command)" > /tmp/d/log 2>&1 & fi
        : > /meet/ucx.launched
        until [ -e /meet/ucx.over ]; do sleep 0.5; done
    fi
    both_at ucx_end
)

# How memory can be registered with the device.
check_ways() {
    local status=0
    fresh
    timeout -s KILL 100 ways > /tmp/d/log 2>&1 || status=$?
    report "ways of registration" $status /tmp/d/log
}

modprobe -a rdma_rxe ib_uverbs rdma_ucm dummy virtio_net
if [ -n "$far" ]; then add_far_device; else add_device; fi
for word in $(of_kernel strait | tr , ' '); do "check_$word"; done
# Warnings of the kernel, with the calls that led to them.
dmesg | grep -A 25 'cut here' | cut -c 1-150 | sed 's/^/    kernel: /'
echo "guest: end"
echo o > /proc/sysrq-trigger
sleep 20
