//! A stand-in for libibverbs, on machines that have no RDMA.
//!
//! It has the entry points that Strait and its tests call, with libibverbs' names, signatures and layouts, and checks
//! arguments as its manual pages say. A thread of the process is the device: it reads and writes memory, without the
//! program's part, and reaches devices of other processes of the host by sockets. Reliable connections (RC) of
//! InfiniBand and RoCE are there, with shared receive queues, inline data, immediate data, RDMA, 64-bit
//! atomics, and memory windows of type 2 that are bound to a queue pair (2B), with IBV_WR_BIND_MW and IBV_WR_LOCAL_INV.
//!
//! | variable | |
//! |---|---|
//! | `VERBS_STAND_IN_DEVICES` | devices, with semicolons: `name:option,option=value` (`sv0`). None if it is `none` |
//! | `VERBS_STAND_IN_FABRIC` | processes with the same name here reach each other (`default`) |
//! | `VERBS_STAND_IN_HOST` | 1 to 255: which host the process plays, which its GIDs and LIDs show (1) |
//! | `VERBS_STAND_IN_DELAY_US` | how long each completion takes to reach its queue (0) |
//! | `VERBS_STAND_IN_REORDER` | a seed: completions of different queue pairs overtake each other, within `DELAY_US` and four times as much |
//! | `VERBS_STAND_IN_POLLED` | `yes`: there is no thread, and what was posted is done by the next ibv_poll_cq(3) of the process: for programs that have both ends and never sleep, whose instructions are counted |
//! | `VERBS_STAND_IN_STATUS` | `status@n`, with commas: the n-th send request of the process ends with this `IBV_WC_*` |
//! | `VERBS_STAND_IN_FAIL` | `name=errno` or `name@n=errno`, with commas: calls that fail, always or the n-th time |
//!
//! | option of a device | |
//! |---|---|
//! | `qp`, `wr`, `sge`, `inline`, `cq`, `cqe`, `mr`, `mrsize`, `mw`, `srq`, `srqwr`, `srqsge`, `reads`, `msg` | its limits |
//! | `ports` | 1 to 4 (1) |
//! | `gids` | entries of each port's table of GIDs (16). 0 and 1 are link-local, 2 and 3 are the IPv4 address 10.HOST.PORT-1.DEVICE |
//! | `mtu` | 256 to 4096 (1024) |
//! | `sysfs` | where sysfs has it (`/sys/class/infiniband/NAME`) |
//! | `nosrq`, `noatomics`, `noodp`, `nodmabuf`, `nomw` | what it lacks: it answers EOPNOTSUPP |
//! | `odpwrong` | on demand it copies from and to where the page begins, whatever the address, as soft RoCE does |
//! | `pins` | memory that is registered by its address is pinned: what of it is 1 MiB or shorter, by io_uring, which may be refused (ibv_reg_mr has its errno). Atomics there are atomic among the device's alone |
//! | `nomap` | dma-bufs are not mapped, but copied by what `stand_in_verbs_device_memory` was given |
//! | `glob` | its atomics are atomic with the processor's (IBV_ATOMIC_GLOB); else among its own (IBV_ATOMIC_HCA). The stand-in's are always, but with `pins` |
//! | `down` | its ports are not active |
//! | `ib` | its link layer is InfiniBand's (LIDs, one GID) |
//! | `iwarp` | its transport is iWARP, as soft iWARP has it: see below |
//! | `old` | its library has no extended operations |
//! | `rxe` | it fails as soft RoCE does: see below. Its vendor is 0xffffff |
//! | `repeats` | it repeats requests all the time, with the faults that soft RoCE has then: see below |
//!
//! Errors are those of the InfiniBand specification. `rxe` has instead what Linux 7.3's soft RoCE was seen to do:
//!
//! | | default | `rxe` |
//! |---|---|---|
//! | a local key that is wrong | IBV_WC_LOC_PROT_ERR | IBV_WC_WR_FLUSH_ERR |
//! | a message longer than its receive | receiver IBV_WC_LOC_LEN_ERR, sender IBV_WC_REM_INV_REQ_ERR | IBV_WC_LOC_QP_OP_ERR, IBV_WC_REM_OP_ERR |
//! | an atomic at a misaligned address | IBV_WC_REM_INV_REQ_ERR | refused by post: EINVAL |
//! | queue entries | 65 536 | 16 384, then EINVAL |
//!
//! Where an answer is late, soft RoCE sends again what was not answered. Then it does requests that bind a window a second
//! time, and goes on to read the memory of a write of several packets whose completion was polled: both end the queue pair,
//! without a status but IBV_WC_WR_FLUSH_ERR. With `repeats` that is so of each such request before whose posting not all
//! completions were polled, and of memory that is deregistered before a later request has completed, also that of the peer
//! that it has read.
//!
//! A device of iWARP (`iwarp`) has its queue pairs connected by librdmacm, whose entry points are here, too: this library serves under
//! both names, if the second is a link to the first. Its addresses are 10.HOST.0.DEVICE, and of the first one those of the host itself, too.
//! Of one that is connected the end is seen by both, by an event and by flushed receives. It lacks atomics, immediate data and windows; a message without a
//! receive ends its connection; what is sent in error is taken and never completes. Completions of a queue pair that was
//! destroyed stay. Its one GID stands for no address.
//!
//! Of both: memory that is unmapped while it is registered takes writes with success, and reads as zero, since its
//! pages are pinned; on demand it is IBV_WC_REM_ACCESS_ERR. Pages mapped at the address since then are not known
//! from the old ones, but with `pins`. A peer that is gone, or whose queue pair is not ready, is IBV_WC_RETRY_EXC_ERR after 4.096 us
//! times 2^timeout for each try.
//!
//! A test in the same process calls `stand_in_fail`, `stand_in_calls`, `stand_in_verbs_status` (a completion with an
//! error), `stand_in_verbs_revoke` (a dma-buf taken back by its exporter; a file that is truncated is one, too; one whose
//! position is not 0 is a dma-buf that begins there),
//! `stand_in_verbs_port` (up, down), `stand_in_verbs_moved` (bytes that went by a port), `stand_in_verbs_no_faults` (memory that is registered on demand, and not accessed), `stand_in_verbs_no_pages`
//! (memory that is not pinned by its address), `stand_in_verbs_hold_connects` (rdma_connect waits), `stand_in_verbs_hold_ends` (rdma_destroy_id waits),
//! `stand_in_verbs_peer_memory` (a client of the kernel's for memory of devices),
//! `stand_in_verbs_device_memory` (copies of dma-bufs of a GPU's driver) and `stand_in_verbs_event` (any asynchronous event, those of queues for all queues of the device).
#![allow(
    clippy::missing_safety_doc,
    clippy::undocumented_unsafe_blocks,
    reason = "a test's library: every function trusts its caller as libibverbs does"
)]

mod buffers;
mod calls;
mod completion;
mod connection;
mod device;
mod entry;
mod hooks;
mod nic;
mod objects;
mod packet;
mod pairs;
mod pinned;
mod post;
mod queues;
mod requester;
mod responder;
mod settings;
mod state;
mod windows;

pub use hooks::{
    stand_in_verbs_event, stand_in_verbs_moved, stand_in_verbs_no_faults, stand_in_verbs_peer_memory,
    stand_in_verbs_port, stand_in_verbs_revoke, stand_in_verbs_status,
};
