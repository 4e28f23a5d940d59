//! The texts of `--help`.

pub const MAIN: &str = "\
strait - the companion of the libfabric provider and UCX transport `strait`

Usage: strait <command> [options]

Commands:
  info      what Strait finds on this host: libfabric, the provider, links, limits
  doctor    what stands in the way of Strait here, and whether a program uses it
  top       the endpoints of this host, and what goes through them
  perf      measures providers side by side between two processes of this host
  plot      draws what perf measured
  topo      the PCI tree: which devices publish memory, and how far others are from it
  p2pmemd   gives peer memory to processes of this host, by rules
  storage   which way a file's bytes take to memory of a kind, why, and how fast
  run       starts the processes of a job on this host
  ucx-env   the settings that turn Strait on under the UCX at hand

  strait <command> --help   tells more
  strait --version
";

/// The text of a command.
pub fn of(command: &str) -> Option<&'static str> {
    Some(match command {
        "info" => INFO,
        "doctor" => DOCTOR,
        "top" => TOP,
        "perf" => PERF,
        "plot" => PLOT,
        "run" => RUN,
        "ucx-env" => UCX_ENV,
        "topo" => TOPO,
        "p2pmemd" => P2PMEMD,
        "storage" => STORAGE,
        _ => return None,
    })
}

pub const INFO: &str = "\
strait info - what Strait finds on this host

Usage: strait info [--json] [--peer ADDRESS] [--libfabric PATH]

  --json             the same for programs
  --peer ADDRESS     which link a peer of this address would get from here with the settings in force, why, and what
                     speaks against each other link; nothing is sent. HOST:PORT, [IPv6]:PORT, or as fi_av_straddr has it
  --libfabric PATH   this libfabric (file, or directory with libfabric.so.1) instead of the default

Exits with 0 if libfabric offers the provider `strait` (with --peer: if a link leads there), else with 1.

Examples:
  strait info
  strait info --peer 10.9.0.2:46949
  FI_PROVIDER_PATH=/opt/strait/lib strait info --json
";

pub const DOCTOR: &str = "\
strait doctor - what stands in the way of Strait here, and whether a program uses it

Usage: strait doctor [--json]
       strait doctor [--json] -- PROGRAM ARGUMENTS

  --json   the same for programs

Without a program: what is installed, each libfabric, UCX and MPI library of this host with the settings by which it
takes Strait, and what processes may do here; each finding with its consequence and what to do.
With a program, such as mpirun: runs it, and says on standard error which way its bytes went, how many they were, what
fell back and why; or why Strait carried nothing. Under UCX what is sent is counted, and nothing of device memory.

Exits with 0 if there is no problem, or if the program succeeded and used Strait; with 1 if not; with 2 for wrong usage.

Examples:
  strait doctor
  strait doctor -- mpirun -n 2 ./program
";

pub const TOP: &str = "\
strait top - the endpoints of this host, and what goes through them

Usage: strait top [--once] [--json] [--delay SECONDS]

  --once            one look, instead of one after the other until it is ended
  --json            each look as a line of JSON
  --delay SECONDS   between two looks (2)

Lists the endpoints in this network namespace, those of UCX too: process, user, peers. Messages and bytes are shown of
processes that run with FI_STRAIT_REPORT=1 and may be looked at by this user; of others there are no counts.

Example:
  strait top --once
";

pub const PLOT: &str = "\
strait plot - draws what was measured before

Usage: strait plot RESULTS.csv... PICTURE

RESULTS are of `strait perf --csv FILE`, or of other programs in that form: lines of
test,bytes,provider,unit,median,min,max,values
where test is one of `strait perf`, in its unit, and values are separated by blanks.
PICTURE ends in .svg or .png.

Example:
  strait plot monday.csv ucx.csv both.svg
";

pub const UCX_ENV: &str = "\
strait ucx-env - the settings that turn Strait on under a UCX

Usage: strait ucx-env [--ucx PATH] [--sockaddr]
       strait ucx-env --undo

  --ucx PATH   this UCX (libuct, or a directory with it) instead of the one that programs find
  --sockaddr   for programs that connect by the address of a socket (ucp_listener_create, UCXX):
               with tcp, by which UCX makes such connections
  --undo       the settings that turn it off again; what was set before comes back

Prints lines for a shell, or says on standard error why there are none, and exits with 1. What else is in
LD_PRELOAD and UCX_PLUGIN_PATH stays there.

Examples:
  eval \"$(strait ucx-env)\"
  eval \"$(strait ucx-env --undo)\"
  eval \"$(strait ucx-env --ucx venv/lib/python3.11/site-packages/libucx/lib)\"
";

pub const RUN: &str = "\
strait run - starts the processes of a job on this host

Usage: strait run -n N [options] PROGRAM [ARGUMENTS]

  -n N, --procs N    so many processes
  --bind             each is bound to a core of its own, as far as there are enough
  -l, --label        output line by line, with the rank in front
  --lines            output line by line, so that lines of several processes do not mix
  --grace SECONDS    from the request to end until a process is killed (2)

Each process gets STRAIT_RANK, STRAIT_SIZE and, by STRAIT_EXCHANGE, a socket by which libstrait_rpipe finds the others.
Rank 0 reads standard input, unless that is a terminal. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on.
If a process is killed or ends with another exit code than 0, the others are told why, get SIGTERM, and later SIGKILL.

Exits with the exit code of the first process that failed, with 128 and its number for a signal, with 127 if there is no
such program, with 2 for wrong usage, and else with 0.

Example:
  strait run -n 4 --bind --label ./program
";

pub const TOPO: &str = "\
strait topo - the PCI tree, what publishes memory in it, and how far devices are from it

Usage: strait topo [options]

Distances and map types are those of the kernel's pci_p2pdma. As root it reads ACS everywhere; else what it
cannot read is assumed to redirect, and it says so.

  --path P,C     the way from publisher P to client C, step by step; addresses, or names such as nvme0
  --svg FILE     draw it, with that way if --path is given
  --json         print JSON
  --all          also devices that neither publish nor use memory
  --sysfs PATH   this directory instead of /sys, or a recording
  --record       print the tree as a recording, for reports of faults

Examples:
  strait topo
  strait topo --path nvme0,mlx5_0 --svg topology.svg
";

pub const P2PMEMD: &str = "\
strait p2pmemd - gives peer memory to processes of this host

Usage: strait p2pmemd [options]

Serves what devices publish in sysfs, and host memory, on a unix socket, until it is killed. Each process is known
by its user; what it holds goes back when it ends. Rules say which memory is for what: strait_p2pmem(7).

  --rules FILE   rules, one a line
  --host SIZE    so much host memory as the last resort, with KiB, MiB, GiB or TiB (0)
  --name NAME    the socket's abstract name (strait-p2pmem)
  --sysfs PATH   this directory instead of /sys

Example:
  strait p2pmemd --host 1GiB --rules /etc/strait/p2pmem.rules
";

pub const STORAGE: &str = "\
strait storage - which way a file's bytes take to memory of a kind and back, why, and how fast

Usage: strait storage [options] FILE

Reads FILE, or a disk, to memory, and says by which path of strait_storage(7), why by no better one, how many bytes went by
each, and the 10^6 bytes a second. Contents are compared with what read(2) has.

  --memory KIND   host (what is taken without this), cuda, cuda:N, or a device that publishes memory (`strait topo`)
  --size SIZE     so much, with KiB, MiB, GiB or TiB (64MiB; with --copy all of it)
  --reps N        times (3)
  --create        makes FILE, which must not be there, writes it from the memory, reads it back, and removes it
  --copy PATH     copies FILE to PATH, which must not be there, through the memory, and compares them
  --no-direct     without O_DIRECT
  --no-cufile     without cuFile
  --sysfs PATH    publishers are looked for there instead of in /sys
  --json          print JSON

Exits with 0 if the contents are right, with 1 if not or if something failed, with 2 for wrong usage.

Examples:
  strait storage --memory cuda:0 checkpoint.bin
  strait storage --memory nvme0 --create --size 16MiB /mnt/fast/probe
  strait storage --memory cuda --copy /mnt/b/model.bin /mnt/a/model.bin
";

pub const PERF: &str = "\
strait perf - measures libfabric providers side by side

Usage: strait perf [options]

Two processes (or more), bound to one core each, talk through each provider in turn. A result is the median of
repetitions, with the least and the most; providers take turns within each repetition. Contents are
checked outside of the measured time. Messages and writes up to the provider's own limit are injected.

  --providers LIST   names as in fi_info; default: those of strait,shm,tcp that are there. Before
                     libfabric 1.18, tcp is taken for tcp;ofi_rxm
  --tests LIST       default: lat,bw,rate,rma-write-lat,rma-write,rma-read,fetch-atomic; `all` for all:
      lat             tagged ping-pong, half a round trip        msg-lat   untagged
      bw              tagged messages one way, window of 64      rate      of 8 bytes, messages/s
      rma-write-lat   ping-pong of writes with remote completion
      put-lat         one write until its completion             rma-write bandwidth, window of 64
      rma-read-lat    one read until its completion              rma-read  bandwidth, window of 64
      atomic, fetch-atomic, compare-atomic    one operation on 64 bits until its completion
                      among --procs processes:
      stream          one way, one at a time, per message        window    64 at a time, per message
      incast          all to one, per message                    ring      from left to right, per step
      exchange        with both neighbours at once, per step     storm     all to all, any source, per step
  --sizes LIST       bytes, with K, M or G; `8..4M` is every power of two, `8..4M:8` every third
                     default: 8,64,512,4K,16K,64K,256K,1M,4M
  --floors           also what the machine takes: cache line, memcpy, process_vm_readv
  --reps N           repetitions (5)
  --time SECONDS     of one measurement (0.03)
  --timeout SECONDS  for anything to happen, else the test fails (10)
  --cpus A,B         the two cores (the first two that are allowed)
  --procs N          processes of the patterns, on cores A, B and on (as many as cores, at most 16)
  --libfabric PATH   this libfabric (file, or directory with libfabric.so.1) instead of the default
  --plot FILE        draw it: .svg or .png
  --csv FILE         one line for each test, size and provider
  --json             print JSON instead of tables
  --quiet            no progress on standard error

Exits with 0 if everything asked for was measured, with 1 if something failed, with 2 for wrong usage.
A provider outside of libfabric is found through FI_PROVIDER_PATH; without it, `strait` is the one of this
installation. On a host with other work, `chrt -f 1 strait perf` (as root) keeps that off the two cores.

Examples:
  strait perf
  strait perf --providers strait,shm --tests lat,rate --sizes 8..4K
  strait perf --providers 'shm,tcp;ofi_rxm' --tests all --plot perf.png --csv perf.csv
";
