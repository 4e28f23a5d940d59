//! The owners, and the stand-in's device, by what a program sees.

mod support;

use rdma_sys::*;
use support::*;

#[test]
fn devices_and_their_limits_are_as_set() {
    let (library, _) = library("sv0;sv1:nosrq,inline=16,sge=1,noatomics,gids=4,cqe=64,down;sv2:old");
    let devices = Device::list(&library).unwrap();
    assert_eq!(devices.iter().map(Device::name).collect::<Vec<_>>(), ["sv0", "sv1", "sv2"]);
    let context = Context::open(&devices[1]).unwrap();
    let attributes = *context.attributes();
    assert_eq!((attributes.max_srq, attributes.max_sge, attributes.max_cqe), (0, 1, 64));
    assert_eq!(attributes.atomic_cap, IBV_ATOMIC_NONE);
    let port = context.port(1).unwrap();
    assert!(!port.is_active() && port.is_ethernet());
    assert_eq!(context.port(2).unwrap_err(), Error::Refused { call: "ibv_query_port", errno: libc::EINVAL });
    let gids = context.gids(&port);
    assert_eq!(gids.len(), 4);
    assert!(gids[0].is_link_local() && !gids[3].is_link_local());
    assert_eq!(gids[3].kind, GidType::RoceV2);
    assert_eq!(Cq::new(&context, 65, None, 0, 0).unwrap_err().errno(), libc::EINVAL);
    let pd = Pd::new(&context).unwrap();
    let srq = Srq::new(&pd, SrqInit { max_wr: 4, max_sge: 1 }, 0).unwrap_err();
    assert_eq!((srq.call(), srq.errno()), (Some("ibv_create_srq"), libc::EOPNOTSUPP));
    let cq = Cq::new(&context, 64, None, 0, 0).unwrap();
    assert_eq!(
        Qp::new(&pd, &cq, &cq, None, QpInit { max_inline: 17, ..INIT }).unwrap_err().errno(),
        libc::EINVAL
    );
    // Without extended operations.
    let old = Context::open(&devices[2]).unwrap();
    assert!(old.port(1).unwrap().is_active());
    assert_eq!(old.extended_attributes().odp_caps.general_caps, 0);
}

#[test]
fn messages_immediate_data_rdma_and_atomics_arrive() {
    let (library, _) = library("sv0");
    let context = Context::open(&Device::list(&library).unwrap()[0]).unwrap();
    let (mut a, mut b) = pair(&context);
    b.recv(1, 0, 100);
    a.memory[..5].copy_from_slice(b"hello");
    a.send(2, IBV_WR_SEND_WITH_IMM, 0, 5, None).unwrap();
    assert_eq!(a.status(), (2, IBV_WC_SUCCESS));
    let wc = b.wait();
    assert_eq!((wc.wr_id, wc.status, wc.opcode, wc.byte_len), (1, IBV_WC_SUCCESS, IBV_WC_RECV, 5));
    // SAFETY: the flag says that it is immediate data.
    assert_eq!(unsafe { wc.anon1.imm_data }, 0x1234u32.to_be());
    assert_eq!(&b.memory[..5], b"hello");

    b.memory[8..16].copy_from_slice(&40u64.to_ne_bytes());
    a.send(3, IBV_WR_RDMA_WRITE, 0, 5, b.at(1000)).unwrap();
    a.post(4, IBV_WR_ATOMIC_FETCH_AND_ADD, 16, 8, b.at(8), IBV_SEND_SIGNALED, [2, 0]).unwrap();
    a.post(5, IBV_WR_ATOMIC_CMP_AND_SWP, 24, 8, b.at(8), IBV_SEND_SIGNALED, [42, 9]).unwrap();
    a.send(6, IBV_WR_RDMA_READ, 32, 8, b.at(8)).unwrap();
    for id in 3..=6 {
        assert_eq!(a.status(), (id, IBV_WC_SUCCESS));
    }
    assert_eq!(&b.memory[1000..1005], b"hello");
    let word = |at: usize| u64::from_ne_bytes(a.memory[at..at + 8].try_into().unwrap());
    assert_eq!([word(16), word(24), word(32)], [40, 42, 9]);
}

#[test]
fn a_receive_that_is_late_is_waited_for_and_then_given_up() {
    let (library, _) = library("sv0");
    let context = Context::open(&Device::list(&library).unwrap()[0]).unwrap();
    let (a, b) = pair(&context);
    a.send(1, IBV_WR_SEND, 0, 8, None).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    b.recv(2, 0, 8);
    assert_eq!((a.status(), b.status()), ((1, IBV_WC_SUCCESS), (2, IBV_WC_SUCCESS)));
    let pd = Pd::new(&context).unwrap();
    let (a, b) = (side(&context, INIT, None, &pd), side(&context, INIT, None, &pd));
    connect(&context, &a, &b, 0);
    a.send(1, IBV_WR_SEND, 0, 8, None).unwrap();
    a.send(2, IBV_WR_SEND, 0, 8, None).unwrap();
    assert_eq!(a.status(), (1, IBV_WC_RNR_RETRY_EXC_ERR));
    assert_eq!(a.status(), (2, IBV_WC_WR_FLUSH_ERR));
    assert_eq!(a.qp.query().unwrap().state, IBV_QPS_ERR);
}

#[test]
fn wrong_keys_ranges_and_lengths_end_with_the_status_of_the_specification() {
    let (library, _) = library("sv0");
    let context = Context::open(&Device::list(&library).unwrap()[0]).unwrap();
    let fresh = || pair(&context);
    let (a, b) = fresh();
    let (at, rkey) = b.at(0).unwrap();
    a.send(1, IBV_WR_RDMA_WRITE, 0, 8, Some((at, rkey ^ 2))).unwrap();
    assert_eq!(a.status(), (1, IBV_WC_REM_ACCESS_ERR));
    assert_eq!(b.qp.query().unwrap().state, IBV_QPS_ERR);
    let (a, b) = fresh();
    a.send(1, IBV_WR_RDMA_READ, 0, 8, b.at(4089)).unwrap();
    assert_eq!(a.status(), (1, IBV_WC_REM_ACCESS_ERR));
    let (a, b) = fresh();
    b.recv(1, 0, 4);
    a.send(2, IBV_WR_SEND, 0, 8, None).unwrap();
    assert_eq!((a.status(), b.status()), ((2, IBV_WC_REM_INV_REQ_ERR), (1, IBV_WC_LOC_LEN_ERR)));
    let (a, _b) = fresh();
    a.send(1, IBV_WR_SEND, 4090, 8, None).unwrap();
    assert_eq!(a.status(), (1, IBV_WC_LOC_PROT_ERR));
    let (a, b) = fresh();
    drop(b);
    a.send(1, IBV_WR_SEND, 0, 8, None).unwrap();
    assert_eq!(a.status(), (1, IBV_WC_RETRY_EXC_ERR));
}

#[test]
fn a_slot_is_free_when_its_completion_was_polled() {
    let (library, _) = library("sv0");
    let context = Context::open(&Device::list(&library).unwrap()[0]).unwrap();
    let (a, b) = pair(&context);
    let unsignaled = |id| a.post(id, IBV_WR_RDMA_WRITE, 0, 8, b.at(0), 0, [0; 2]);
    (0..7).for_each(|id| unsignaled(id).unwrap());
    a.send(7, IBV_WR_RDMA_WRITE, 0, 8, b.at(0)).unwrap();
    assert_eq!(unsignaled(8).unwrap_err().errno(), libc::ENOMEM);
    assert_eq!(a.status(), (7, IBV_WC_SUCCESS));
    (8..16).for_each(|id| unsignaled(id).unwrap());
}

#[test]
fn a_dmabuf_that_is_taken_back_is_no_longer_accessed() {
    use std::os::fd::AsFd;
    let (library, program) = library("sv0");
    let context = Context::open(&Device::list(&library).unwrap()[0]).unwrap();
    let (a, b) = pair(&context);
    // SAFETY: makes a file.
    let file = unsafe { libc::memfd_create(c"dma-buf".as_ptr(), 0) };
    // SAFETY: just made.
    let file = unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(file) };
    file.set_len(8192).unwrap();
    let part = Dmabuf { fd: file.as_fd(), offset: 4096, len: 4096, iova: 0x10_0000 };
    // SAFETY: the test's own file.
    let mr = unsafe { b.pd.register_dmabuf(part, ALL) }.unwrap();
    a.send(1, IBV_WR_RDMA_WRITE, 0, 8, Some((0x10_0000, mr.rkey()))).unwrap();
    assert_eq!(a.status(), (1, IBV_WC_SUCCESS));
    let revoke = program.symbol("stand_in_verbs_revoke");
    // SAFETY: that function's type.
    let revoke: extern "C" fn(i32) -> i32 = unsafe { std::mem::transmute(revoke) };
    assert_eq!(revoke(std::os::fd::AsRawFd::as_raw_fd(&file)), 1);
    a.send(2, IBV_WR_RDMA_WRITE, 0, 8, Some((0x10_0000, mr.rkey()))).unwrap();
    assert_eq!(a.status(), (2, IBV_WC_REM_ACCESS_ERR));
    let odd = Dmabuf { iova: 1, ..part };
    // SAFETY: as above.
    assert_eq!(unsafe { b.pd.register_dmabuf(odd, ALL) }.unwrap_err().errno(), libc::EINVAL);
}

#[test]
fn shared_receives_and_completion_events_wake() {
    let (library, _) = library("sv0");
    let context = Context::open(&Device::list(&library).unwrap()[0]).unwrap();
    let pd = Pd::new(&context).unwrap();
    let srq = Srq::new(&pd, SrqInit { max_wr: 4, max_sge: 1 }, 77).unwrap();
    let channel = Channel::new(&context).unwrap();
    channel.set_nonblocking().unwrap();
    context.set_nonblocking().unwrap();
    let a = side(&context, INIT, None, &pd);
    let mut b = side(&context, QpInit { max_recv_wr: 0, ..INIT }, Some(&srq), &pd);
    let woken = Cq::new(&context, 8, Some(&channel), 0, 99).unwrap();
    b.qp = Qp::new(&pd, &woken, &woken, Some(&srq), QpInit { max_recv_wr: 0, ..INIT }).unwrap();
    b.cq = woken;
    connect(&context, &a, &b, 7);
    // SAFETY: registered, and left alone.
    unsafe { srq.post(5, &[b.sge(0, 8)]) }.unwrap();
    srq.set_limit(1).unwrap();
    b.cq.arm(false).unwrap();
    assert_eq!(channel.event().unwrap(), None);
    a.send(1, IBV_WR_SEND, 0, 8, None).unwrap();
    assert_eq!(b.status(), (5, IBV_WC_SUCCESS));
    assert_eq!(channel.event().unwrap(), Some(99));
    assert_eq!(channel.event().unwrap(), None);
    let kind = IBV_EVENT_SRQ_LIMIT_REACHED;
    assert_eq!(context.event().unwrap(), Some(Event::Srq { kind, value: 77 }));
}

/// A write and a read between two processes; the second is this test again.
#[test]
fn devices_of_two_processes_reach_each_other() {
    use std::io::{BufRead, BufReader, Write};
    let name = "devices_of_two_processes_reach_each_other";
    let is_child = std::env::var("RDMA_SYS_TEST_FABRIC");
    let (library, _) = library("sv0");
    let fabric = is_child.clone().unwrap_or_else(|_| format!("two-{}", std::process::id()));
    // SAFETY: the stand-in has no thread yet, since no device is open.
    unsafe { std::env::set_var("VERBS_STAND_IN_FABRIC", &fabric) };
    let context = Context::open(&Device::list(&library).unwrap()[0]).unwrap();
    let pd = Pd::new(&context).unwrap();
    let mut own = side(&context, INIT, None, &pd);
    let port = context.port(1).unwrap();
    let gid = context.gid(&port, 3).unwrap();
    let join = |own: &Side, qpn| {
        let how = ToRts { psn: 1, timeout: 14, retries: 3, rnr_retries: 7, max_reads: 4 };
        own.join(&port, gid, (qpn, 1), &how);
    };
    if is_child.is_ok() {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        own.memory[..4].copy_from_slice(b"far!");
        join(&own, line.trim().parse().unwrap());
        let (at, rkey) = own.at(0).unwrap();
        println!("\nPEER {} {at} {rkey}", own.qp.number());
        line.clear();
        // Until the other end closes.
        std::io::stdin().read_line(&mut line).unwrap();
        assert_eq!(&own.memory[8..12], b"near");
        return;
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env("RDMA_SYS_TEST_FABRIC", &fabric)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut to = child.stdin.take().unwrap();
    writeln!(to, "{}", own.qp.number()).unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let line = lines.find(|line| line.starts_with("PEER")).unwrap();
    let numbers: Vec<u64> = line.split(' ').skip(1).map(|n| n.parse().unwrap()).collect();
    join(&own, numbers[0] as u32);
    own.memory[..4].copy_from_slice(b"near");
    own.send(1, IBV_WR_RDMA_WRITE, 0, 4, Some((numbers[1] + 8, numbers[2] as u32))).unwrap();
    own.send(2, IBV_WR_RDMA_READ, 100, 4, Some((numbers[1], numbers[2] as u32))).unwrap();
    assert_eq!([own.status(), own.status()], [(1, IBV_WC_SUCCESS), (2, IBV_WC_SUCCESS)]);
    assert_eq!(&own.memory[100..104], b"far!");
    drop(to);
    lines.for_each(drop);
    assert!(child.wait().unwrap().success());
    // The process is gone.
    own.send(3, IBV_WR_RDMA_WRITE, 0, 4, Some((numbers[1], numbers[2] as u32))).unwrap();
    assert_eq!(own.status(), (3, IBV_WC_RETRY_EXC_ERR));
}
