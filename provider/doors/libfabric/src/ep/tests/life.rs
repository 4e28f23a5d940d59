//! From fi_endpoint to fi_close.

use super::*;

const BOTH: u64 = fi::FI_TRANSMIT | fi::FI_RECV;

fn send(ep: *mut fi::fid_ep) -> isize {
    call!(ep, msg.send(ptr::null(), 0, ptr::null_mut(), 0, ptr::null_mut()))
}

/// What rdm_multi_domain of fabtests does: it only ever writes.
#[test]
fn who_gives_no_queue_for_receives_cannot_receive() {
    let w = World::new();
    let ep = w.ep();
    assert_eq!(bind_to(ep, w.cq, fi::FI_TRANSMIT), 0);
    assert_eq!(bind_to(ep, w.av, 0), 0);
    assert_eq!(enable(ep), 0);
    let recv = call!(ep, msg.recv(ptr::null_mut(), 0, ptr::null_mut(), fi::FI_ADDR_UNSPEC, ptr::null_mut()));
    assert_eq!(recv, -(fi::FI_ENOCQ as isize));
    assert_eq!(close(ep), 0);
}

#[test]
fn what_is_missing_is_said_when_it_is_enabled() {
    let w = World::new();
    let ep = w.ep();
    assert_eq!(send(ep), -(fi::FI_EOPBADSTATE as isize));
    assert_eq!(enable(ep), -fi::FI_ENOCQ);
    assert_eq!(bind_to(ep, w.cq, fi::FI_TRANSMIT), 0);
    assert_eq!(enable(ep), -fi::FI_ENOAV);
    assert_eq!(bind_to(ep, w.cq, BOTH), -fi::FI_EINVAL, "bound for sends already");
    assert_eq!(bind_to(ep, w.cq, fi::FI_RECV | fi::FI_READ), -fi::FI_EBADFLAGS);
    assert_eq!(bind_to(ep, w.cq, fi::FI_SELECTIVE_COMPLETION), -fi::FI_EINVAL);
    assert_eq!(bind_to(ep, w.cq, fi::FI_RECV | fi::FI_SELECTIVE_COMPLETION), 0);
    assert_eq!(enable(ep), -fi::FI_ENOAV);
    assert_eq!(bind_to(ep, w.av, 1), -fi::FI_EBADFLAGS);
    assert_eq!(bind_to(ep, w.av, 0), 0);
    assert_eq!(bind_to(ep, w.av, 0), -fi::FI_EINVAL);
    assert_eq!(bind_to(ep, w.domain, 0), -fi::FI_EINVAL);
    assert_eq!(bind_to(ep, ptr::null_mut::<fi::fid>(), 0), -fi::FI_EINVAL);
    assert_eq!(enable(ep), 0);
    assert_eq!(enable(ep), 0);
    assert_eq!(close(ep), 0);
    w.end();
}

#[test]
fn what_it_is_bound_to_stays_open() {
    let w = World::new();
    let (early, late) = (w.cntr(), w.cntr());
    let ep = w.ep();
    w.bind(ep, BOTH);
    assert_eq!(bind_to(ep, early, fi::FI_SEND | fi::FI_WRITE), 0);
    assert_eq!(bind_to(ep, early, fi::FI_WRITE), -fi::FI_EINVAL);
    assert_eq!(bind_to(ep, early, fi::FI_MULTI_RECV), -fi::FI_EBADFLAGS);
    for object in [w.cq.cast::<fi::fid>(), w.av.cast(), early.cast(), w.domain.cast()] {
        assert_eq!(close(object), -fi::FI_EBUSY);
    }
    assert_eq!(enable(ep), 0);
    assert_eq!(bind_to(ep, late, fi::FI_READ), 0, "Sandia OpenSHMEM binds counters late");
    assert_eq!(close(late), -fi::FI_EBUSY);
    assert_eq!(bind_to(ep, w.cq, fi::FI_RECV), -fi::FI_EOPBADSTATE);
    assert_eq!(close(ep), 0);
    assert_eq!((close(early), close(late)), (0, 0));
    w.end();
}

#[test]
fn objects_of_another_domain_are_refused() {
    let (w, other) = (World::new(), World::new());
    let (ep, cntr) = (w.ep(), other.cntr());
    assert_eq!(bind_to(ep, other.cq, BOTH), -fi::FI_EINVAL);
    assert_eq!(bind_to(ep, other.av, 0), -fi::FI_EINVAL);
    assert_eq!(bind_to(ep, cntr, fi::FI_SEND), -fi::FI_EINVAL);
    assert_eq!((close(ep), close(cntr)), (0, 0));
    w.end();
    other.end();
}

#[test]
fn it_has_a_name_from_the_start_and_may_change_it() {
    let w = World::new();
    let ep = w.ep();
    let first = name(ep);
    assert_eq!(first.len(), size_of::<libc::sockaddr_in>());
    let mut len = 4;
    let mut part = [0; 4];
    assert_eq!(getname(ep, &mut part, &mut len), -fi::FI_ETOOSMALL);
    assert_eq!((len, &part[..]), (16, &first[..4]));
    let mut set = first.clone();
    set[2..4].fill(0);
    let rename = |to: &mut [u8]| {
        // SAFETY: an open endpoint with full tables, and an address.
        unsafe { ((*(*ep).cm).setname.unwrap())(ep.cast(), to.as_mut_ptr().cast(), to.len()) }
    };
    assert_eq!(rename(&mut first.clone()), -fi::FI_EADDRINUSE);
    assert_eq!(rename(&mut set), 0);
    assert_ne!(name(ep), first);
    assert_ne!(name(ep), set);
    w.bind(ep, BOTH);
    assert_eq!(enable(ep), 0);
    assert_eq!(rename(&mut set), -fi::FI_EBUSY);
    assert_eq!(close(ep), 0);
    w.end();
}

#[test]
fn the_endpoint_lives_as_long_as_an_alias() {
    let w = World::new();
    let (ep, to) = w.enabled(0);
    let mut alias = ptr::null_mut::<fi::fid>();
    let make = |flags, fid| {
        let mut arg = fi::fi_alias { fid, flags };
        call_fid!(ep, control(fi::FI_ALIAS, (&raw mut arg).cast()))
    };
    assert_eq!(make(0, &raw mut alias), -fi::FI_EINVAL);
    assert_eq!(make(BOTH, &raw mut alias), -fi::FI_EINVAL);
    assert_eq!(make(fi::FI_TRANSMIT, ptr::null_mut()), -fi::FI_EINVAL);
    assert_eq!(make(fi::FI_TRANSMIT | fi::FI_DELIVERY_COMPLETE, &raw mut alias), 0);
    let mut flags = fi::FI_TRANSMIT;
    assert_eq!(call_fid!(alias, control(fi::FI_GETOPSFLAG, (&raw mut flags).cast())), 0);
    assert_eq!(flags, fi::FI_DELIVERY_COMPLETE);
    flags = fi::FI_TRANSMIT;
    assert_eq!(call_fid!(ep, control(fi::FI_GETOPSFLAG, (&raw mut flags).cast())), 0);
    assert_eq!(flags, 0);
    flags = fi::FI_RECV | fi::FI_MULTI_RECV;
    assert_eq!(call_fid!(ep, control(fi::FI_SETOPSFLAG, (&raw mut flags).cast())), 0);
    flags = fi::FI_RECV;
    assert_eq!(call_fid!(ep, control(fi::FI_GETOPSFLAG, (&raw mut flags).cast())), 0);
    assert_eq!(flags, fi::FI_MULTI_RECV);
    assert_eq!(close(ep), 0);
    assert_eq!(close(w.av), -fi::FI_EBUSY);
    let alias: *mut fi::fid_ep = alias.cast();
    let buf = leak([0u8; 8]).cast();
    assert_eq!(call!(alias, msg.recv(buf, 8, ptr::null_mut(), to, context(1))), 0);
    assert_eq!(call!(alias, msg.send(buf, 8, ptr::null_mut(), to, context(2))), 0);
    assert_eq!(w.two(), [1, 2]);
    assert_eq!(close(alias), 0);
    w.end();
}

/// The last is the one that waits for peers, and whose caller hears that one is inside still (FI_EBUSY).
#[test]
fn of_fids_that_are_closed_at_once_one_is_the_last() {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    const ROUNDS: usize = 100_000;
    let of: Vec<_> = (0..ROUNDS).map(|_| (Fids(Mutex::new(2)), AtomicUsize::new(0))).collect();
    let close = || {
        let each = of.iter().map(|(fids, there)| {
            // Both at the same moment, for which neither may sleep.
            there.fetch_add(1, SeqCst);
            let mut turns = 0;
            while there.load(SeqCst) < 2 {
                turns += 1;
                if turns > 1000 {
                    std::thread::yield_now();
                }
            }
            fids.take(|| Err(Errno::BUSY))
        });
        each.collect::<Vec<_>>()
    };
    let (one, other) = std::thread::scope(|threads| {
        let other = threads.spawn(close);
        (close(), other.join().unwrap())
    });
    for (round, (fids, _)) in of.iter().enumerate() {
        let busy = [one[round], other[round]].iter().filter(|said| **said == Err(Errno::BUSY)).count();
        assert_eq!(busy, 1, "round {round}");
        // It is tried again, and is the last still.
        let mut asked = 0;
        let again = fids.take(|| {
            asked += 1;
            Ok::<_, Errno>(())
        });
        assert_eq!((again, asked, *fids.lock()), (Ok(()), 1, 0));
    }
}

/// Another thread may open an endpoint, which gets the number of the one that was closed, before the other is
/// freed.
#[test]
fn an_endpoint_that_is_closed_and_freed_later_ends_no_other() {
    let w = World::new();
    let (first, _) = w.enabled(0);
    // SAFETY: an open endpoint.
    let held = unsafe { obj::<EpFid, _>(first.cast::<fi::fid>()) }.map(|ep| ep.endpoint.clone()).unwrap();
    let number = held.live.get().map(|live| live.ep);
    assert_eq!(close(first), 0);
    let (second, to) = w.enabled(0);
    // SAFETY: an open endpoint.
    let live = unsafe { obj::<EpFid, _>(second.cast::<fi::fid>()) }.unwrap().live().unwrap().ep;
    assert_eq!(Some(live), number, "nothing is tested if it has another");
    drop(held);
    let buf = leak([0u8; 8]).cast();
    assert_eq!(call!(second, msg.recv(buf, 8, ptr::null_mut(), to, context(1))), 0);
    assert_eq!(call!(second, msg.send(buf, 8, ptr::null_mut(), to, context(2))), 0);
    assert_eq!(w.two(), [1, 2]);
    assert_eq!(close(second), 0);
    w.end();
}

/// By two threads, as applications may: each of the closes succeeds, and nothing is left.
#[test]
fn an_endpoint_and_its_alias_are_closed_at_once() {
    for _ in 0..20 {
        let w = World::new();
        let (ep, _) = w.enabled(0);
        let mut alias = ptr::null_mut::<fi::fid>();
        let mut arg = fi::fi_alias { fid: &raw mut alias, flags: fi::FI_TRANSMIT };
        assert_eq!(call_fid!(ep, control(fi::FI_ALIAS, (&raw mut arg).cast())), 0);
        let fids = [ep.expose_provenance(), alias.expose_provenance()];
        let closed = std::thread::scope(|threads| {
            fids.map(|fid| threads.spawn(move || close(ptr::with_exposed_provenance_mut::<fi::fid>(fid))))
                .map(|thread| thread.join().unwrap())
        });
        assert_eq!(closed, [0, 0]);
        w.end();
    }
}

fn getopt<T: Default>(ep: *mut fi::fid_ep, option: c_int) -> Result<T, c_int> {
    let (mut value, mut len) = (T::default(), size_of::<T>());
    let to = (&raw mut value).cast();
    // SAFETY: an open endpoint with full tables, and room of the length said.
    let rc = unsafe { ((*(*ep).ops).getopt.unwrap())(ep.cast(), fi::FI_OPT_ENDPOINT, option, to, &mut len) };
    if rc == 0 { Ok(value) } else { Err(rc) }
}

fn setopt<T>(ep: *mut fi::fid_ep, option: c_int, value: T) -> c_int {
    let (from, len) = ((&raw const value).cast(), size_of::<T>());
    // SAFETY: an open endpoint with full tables, and a value of the length said.
    unsafe { ((*(*ep).ops).setopt.unwrap())(ep.cast(), fi::FI_OPT_ENDPOINT, option, from, len) }
}

#[test]
fn options_answer_as_clients_expect() {
    let w = World::new();
    let ep = w.ep();
    assert_eq!(getopt(ep, fi::FI_OPT_MIN_MULTI_RECV), Ok(64usize));
    assert_eq!(setopt(ep, fi::FI_OPT_MIN_MULTI_RECV, 16384usize), 0);
    assert_eq!(getopt(ep, fi::FI_OPT_MIN_MULTI_RECV), Ok(16384usize));
    assert_eq!(getopt::<u32>(ep, fi::FI_OPT_MIN_MULTI_RECV), Err(-fi::FI_ETOOSMALL));
    assert_eq!(setopt(ep, fi::FI_OPT_MIN_MULTI_RECV, 1u32), -fi::FI_EINVAL);
    assert_eq!(getopt(ep, fi::FI_OPT_CM_DATA_SIZE), Ok(0usize));
    assert_eq!(getopt(ep, fi::FI_OPT_TX_SIZE), Ok(100usize));
    assert_eq!(getopt(ep, fi::FI_OPT_RX_SIZE), Ok(200usize));
    assert_eq!(getopt(ep, fi::FI_OPT_INJECT_RMA_SIZE), Ok(4096usize));
    assert_eq!(setopt(ep, fi::FI_OPT_INJECT_MSG_SIZE, 8192usize), -fi::FI_EINVAL);
    assert_eq!(setopt(ep, fi::FI_OPT_INJECT_MSG_SIZE, 64usize), 0);
    assert_eq!(getopt(ep, fi::FI_OPT_INJECT_MSG_SIZE), Ok(64usize));
    // aws-ofi-nccl uses device memory only where this succeeds.
    assert_eq!(setopt(ep, fi::FI_OPT_CUDA_API_PERMITTED, false), 0);
    assert_eq!(setopt(ep, fi::FI_OPT_SHARED_MEMORY_PERMITTED, true), 0);
    assert_eq!(setopt(ep, fi::FI_OPT_SHARED_MEMORY_PERMITTED, false), -fi::FI_EOPNOTSUPP);
    assert_eq!(setopt(ep, fi::FI_OPT_FI_HMEM_P2P, fi::FI_HMEM_P2P_DISABLED), 0);
    assert_eq!(getopt(ep, fi::FI_OPT_FI_HMEM_P2P), Ok(fi::FI_HMEM_P2P_DISABLED));
    assert_eq!(setopt(ep, fi::FI_OPT_FI_HMEM_P2P, fi::FI_HMEM_P2P_REQUIRED), -fi::FI_EOPNOTSUPP);
    assert_eq!(setopt(ep, fi::FI_OPT_XPU_TRIGGER, 1usize), -fi::FI_ENOPROTOOPT);
    assert_eq!(getopt::<usize>(ep, fi::FI_OPT_BUFFERED_LIMIT), Err(-fi::FI_ENOPROTOOPT));
    assert_eq!(call!(ep, ops.tx_size_left()), -(fi::FI_EOPBADSTATE as isize));
    w.bind(ep, BOTH);
    assert_eq!(enable(ep), 0);
    assert_eq!(call!(ep, ops.tx_size_left()), 100);
    assert_eq!(call!(ep, ops.rx_size_left()), 200);
    assert_eq!(setopt(ep, fi::FI_OPT_MIN_MULTI_RECV, 32usize), 0);
    assert_eq!(setopt(ep, fi::FI_OPT_INJECT_MSG_SIZE, 32usize), -fi::FI_EOPBADSTATE);
    assert_eq!(close(ep), 0);
    w.end();
}

#[test]
fn a_shared_receive_context_serves_its_endpoints() {
    let w = World::new();
    let mut srx = ptr::null_mut();
    let attr = &mut fi::fi_rx_attr::default();
    assert_eq!(call!(w.domain, ops.srx_ctx(attr, &mut srx, ptr::null_mut())), 0);
    let ep = w.ep();
    w.bind(ep, BOTH);
    assert_eq!(bind_to(ep, srx, 0), 0);
    assert_eq!(close(srx), -fi::FI_EBUSY);
    assert_eq!(enable(ep), 0);
    let to = w.insert(ep);
    let buf = leak([0u8; 8]).cast();
    let any = fi::FI_ADDR_UNSPEC;
    assert_eq!(call!(srx, tagged.recv(buf, 8, ptr::null_mut(), any, 7, 0, context(1))), 0);
    assert_eq!(call!(ep, tagged.send(buf, 8, ptr::null_mut(), to, 7, context(2))), 0);
    assert_eq!(w.two(), [1, 2]);
    assert_eq!(call!(srx, msg.recv(buf, 8, ptr::null_mut(), any, context(3))), 0);
    // SAFETY: an open receive context with full tables.
    assert_eq!(unsafe { ((*(*srx).ops).cancel.unwrap())(srx.cast(), context(3)) }, 0);
    assert_eq!(w.next().err(), Some(fi::FI_ECANCELED));
    assert_eq!(call!(srx, msg.send(buf, 8, ptr::null_mut(), to, context(2))), -(fi::FI_ENOSYS as isize));
    assert_eq!((close(ep), close(srx)), (0, 0));
    w.end();
}

/// A shared receive completes as the queue of the endpoint that the message comes to is bound.
#[test]
fn shared_receive_completes_by_the_binding_of_the_receiving_endpoint() {
    let w = World::new();
    let (any, no) = (fi::FI_ADDR_UNSPEC, ptr::null_mut::<c_void>());
    let mut srx = ptr::null_mut();
    assert_eq!(call!(w.domain, ops.srx_ctx(&mut fi::fi_rx_attr::default(), &mut srx, no)), 0);
    let selective = fi::FI_SELECTIVE_COMPLETION;
    // An order of binding must not matter.
    let eps = [selective, 0, selective].map(|more| {
        let ep = w.ep();
        w.bind(ep, fi::FI_TRANSMIT | selective);
        assert_eq!((bind_to(ep, w.cq, fi::FI_RECV | more), bind_to(ep, srx, 0), enable(ep)), (0, 0, 0));
        (ep, w.insert(ep), more == 0)
    });
    let buf = leak([0u8; 64]).cast::<c_void>();
    let iov = libc::iovec { iov_base: buf, iov_len: 64 };
    let found = |n: usize, written: bool| {
        let found = w.soon().map(|c| c.unwrap().op_context.addr());
        assert_eq!(found, written.then_some(n));
    };
    // Posted before the message and after it, untagged and tagged, and asked for.
    for (at, (ep, to, every)) in eps.into_iter().enumerate() {
        for late in [false, true] {
            let n = 10 * at + 1;
            let (send, tagged) = (
                || assert_eq!(call!(ep, msg.inject(buf, 5, to)), 0),
                || assert_eq!(call!(ep, tagged.inject(buf, 5, to, 7)), 0),
            );
            let recv = || assert_eq!(call!(srx, msg.recv(buf, 64, no, any, context(n))), 0);
            let trecv = || assert_eq!(call!(srx, tagged.recv(buf, 64, no, any, 7, 0, context(n + 1))), 0);
            let m = fi::fi_msg {
                msg_iov: &raw const iov,
                desc: no.cast(),
                iov_count: 1,
                addr: any,
                context: context(n + 2),
                data: 0,
            };
            let asked = || assert_eq!(call!(srx, msg.recvmsg(&m, fi::FI_COMPLETION)), 0);
            // By the endpoint itself: which of them posts makes no difference.
            let other = || assert_eq!(call!(eps[0].0, msg.recv(buf, 64, no, any, context(n + 3))), 0);
            type Call<'a> = &'a dyn Fn();
            let pairs: [(Call<'_>, Call<'_>, bool); 4] = [
                (&send, &recv, every),
                (&tagged, &trecv, every),
                (&send, &asked, true),
                (&send, &other, every),
            ];
            for (i, (send, recv, written)) in pairs.into_iter().enumerate() {
                if late {
                    send();
                    assert!(w.soon().is_none());
                    recv();
                } else {
                    recv();
                    send();
                }
                found(n + i, written);
            }
        }
    }
    assert_eq!((eps.map(|(ep, ..)| close(ep)), close(srx)), ([0; 3], 0));
    w.end();
}

/// A cancel and a peek without a message complete in the queue of the endpoint that is called.
#[test]
fn cancel_and_failed_peek_complete_in_the_queue_of_the_called_endpoint() {
    let w = World::new();
    let (any, no) = (fi::FI_ADDR_UNSPEC, ptr::null_mut::<c_void>());
    let mut srx = ptr::null_mut();
    assert_eq!(call!(w.domain, ops.srx_ctx(&mut fi::fi_rx_attr::default(), &mut srx, no)), 0);
    let mut other = ptr::null_mut();
    let attr = &mut fi::fi_cq_attr { format: fi::FI_CQ_FORMAT_TAGGED, ..Default::default() };
    assert_eq!(call!(w.domain, ops.cq_open(attr, &mut other, no)), 0);
    // One without a queue for receives, one with the other queue, and one with the world's.
    let eps = [None, Some(other), Some(w.cq)].map(|cq| {
        let ep = w.ep();
        w.bind(ep, fi::FI_TRANSMIT);
        assert!(cq.is_none_or(|cq| bind_to(ep, cq, fi::FI_RECV) == 0));
        assert_eq!((bind_to(ep, srx, 0), enable(ep)), (0, 0));
        ep
    });
    let buf = leak([0u8; 8]).cast::<c_void>();
    let message = fi::fi_msg_tagged { addr: any, context: context(2), tag: 7, ..Default::default() };
    assert_eq!(call!(srx, msg.recv(buf, 8, no, any, context(1))), 0);
    // SAFETY: an open endpoint with full tables.
    assert_eq!(unsafe { ((*(*eps[2]).ops).cancel.unwrap())(eps[2].cast(), context(1)) }, 0);
    assert_eq!(w.next().err(), Some(fi::FI_ECANCELED));
    assert_eq!(call!(eps[2], tagged.recvmsg(&message, fi::FI_PEEK)), 0);
    assert_eq!(w.next().err(), Some(fi::FI_ENOMSG));
    assert_eq!((eps.map(close), close(other), close(srx)), ([0; 3], 0, 0));
    w.end();
}
