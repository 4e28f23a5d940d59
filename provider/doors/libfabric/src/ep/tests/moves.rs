//! Messages, remote memory and atomics.

use super::*;

const NO: *mut c_void = ptr::null_mut();
const EINVAL: isize = -(fi::FI_EINVAL as isize);

fn bytes(text: &[u8]) -> *mut c_void {
    let mut memory = [0; 64];
    memory[..text.len()].copy_from_slice(text);
    leak(memory).cast()
}

fn text(at: *const c_void, len: usize) -> Vec<u8> {
    // SAFETY: from `bytes`, and nothing writes there now.
    unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len) }.to_vec()
}

fn register(w: &World, at: *mut c_void, key: u64) -> *mut fi::fid_mr {
    let mut mr = ptr::null_mut();
    let access = fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE | fi::FI_READ | fi::FI_WRITE;
    let fid = w.domain.cast();
    // SAFETY: an open domain with full tables, and memory that stays.
    let rc = unsafe { ((*(*w.domain).mr).reg.unwrap())(fid, at, 64, access, 0, key, 0, &mut mr, NO) };
    assert_eq!(rc, 0);
    mr
}

#[test]
fn a_message_comes_with_its_tag_and_data() {
    let w = World::new();
    let (ep, to) = w.enabled(0);
    let (from, into) = (bytes(b"hello"), bytes(b""));
    assert_eq!(call!(ep, tagged.recv(into, 64, NO, to, 0x10, 0xf, context(1))), 0);
    assert_eq!(call!(ep, tagged.senddata(from, 5, NO, 99, to, 0x1c, context(2))), 0);
    let both = [w.next().unwrap(), w.next().unwrap()];
    let got = both.iter().find(|e| e.op_context == context(1)).unwrap();
    assert_eq!((got.len, got.tag, got.data), (5, 0x1c, 99));
    assert_eq!(got.flags, fi::FI_TAGGED | fi::FI_RECV | fi::FI_REMOTE_CQ_DATA);
    assert_eq!(text(into, 5), b"hello");
    // Without FI_REMOTE_CQ_DATA the message's data field means nothing.
    let mut iov = libc::iovec { iov_base: from, iov_len: 5 };
    let m = fi::fi_msg {
        msg_iov: &raw const iov,
        iov_count: 1,
        addr: to,
        data: 7,
        context: NO,
        desc: ptr::null_mut(),
    };
    assert_eq!(call!(ep, msg.sendmsg(&m, fi::FI_INJECT)), 0);
    iov.iov_base = into;
    let m = fi::fi_msg { msg_iov: &raw const iov, context: context(4), ..m };
    assert_eq!(call!(ep, msg.recvmsg(&m, 0)), 0);
    let both = [w.next().unwrap(), w.next().unwrap()];
    let got = both.iter().find(|e| e.op_context == context(4)).unwrap();
    assert_eq!((got.len, got.data, got.flags), (5, 0, fi::FI_MSG | fi::FI_RECV));
    assert_eq!(close(ep), 0);
    w.end();
}

#[test]
fn inject_is_silent_and_a_selective_queue_too() {
    let w = World::new();
    let (ep, to) = w.enabled(fi::FI_SELECTIVE_COMPLETION);
    let (from, into) = (bytes(b"hello"), bytes(b""));
    let iov = libc::iovec { iov_base: into, iov_len: 64 };
    let m = fi::fi_msg {
        msg_iov: &raw const iov,
        iov_count: 1,
        addr: to,
        data: 0,
        context: context(9),
        desc: ptr::null_mut(),
    };
    assert_eq!(call!(ep, msg.inject(from, 5, to)), 0);
    assert_eq!(call!(ep, msg.send(from, 5, NO, to, NO)), 0);
    assert_eq!(call!(ep, msg.recv(into, 64, NO, to, NO)), 0);
    assert_eq!(call!(ep, msg.recvmsg(&m, fi::FI_COMPLETION)), 0);
    assert_eq!(w.next().unwrap().op_context, context(9));
    assert!(w.soon().is_none());
    let big = leak([0u8; 4097]).cast();
    assert_eq!(call!(ep, msg.inject(big, 4097, to)), -(fi::FI_EMSGSIZE as isize));
    assert_eq!(close(ep), 0);
    w.end();
}

#[test]
fn peek_claims_and_discards() {
    let w = World::new();
    let (ep, to) = w.enabled(0);
    let (from, into) = (bytes(b"hello"), bytes(b""));
    let iov = libc::iovec { iov_base: into, iov_len: 64 };
    let ask = |tag, n, flags| {
        let m = fi::fi_msg_tagged {
            msg_iov: &raw const iov,
            desc: ptr::null_mut(),
            iov_count: 1,
            addr: to,
            tag,
            ignore: 0,
            context: context(n),
            data: 0,
        };
        call!(ep, tagged.recvmsg(&m, flags))
    };
    assert_eq!(ask(1, 1, fi::FI_PEEK), 0);
    assert_eq!(w.next().err(), Some(fi::FI_ENOMSG));
    for tag in 1..=3 {
        assert_eq!(call!(ep, tagged.inject(from, 5, to, tag)), 0);
    }
    let found = |tag, n, flags| {
        for _ in 0..1000 {
            assert_eq!(ask(tag, n, flags), 0);
            match w.next() {
                Ok(e) => return e,
                Err(e) => assert_eq!(e, fi::FI_ENOMSG),
            }
        }
        panic!("the message never came");
    };
    assert_eq!(found(2, 2, fi::FI_PEEK).len, 5);
    assert_eq!(found(2, 2, fi::FI_PEEK | fi::FI_CLAIM).len, 5);
    assert_eq!(ask(2, 3, fi::FI_PEEK), 0);
    assert_eq!(w.next().err(), Some(fi::FI_ENOMSG), "claimed by another");
    assert_eq!(ask(2, 2, fi::FI_CLAIM), 0);
    assert_eq!(w.next().unwrap().tag, 2);
    assert_eq!(text(into, 5), b"hello");
    assert_eq!(found(3, 4, fi::FI_PEEK | fi::FI_DISCARD).tag, 3);
    assert_eq!(found(1, 5, fi::FI_PEEK | fi::FI_CLAIM).tag, 1);
    assert_eq!(ask(1, 5, fi::FI_CLAIM | fi::FI_DISCARD), 0);
    assert_eq!(w.next().unwrap().tag, 1);
    assert_eq!(ask(1, 1, fi::FI_DISCARD), EINVAL);
    assert_eq!(ask(1, 1, fi::FI_MULTI_RECV), EINVAL);
    assert_eq!(close(ep), 0);
    w.end();
}

/// The entry is all that a peek is for.
#[test]
fn what_a_peek_finds_is_written_also_to_a_selective_queue() {
    let w = World::new();
    let (ep, to) = w.enabled(fi::FI_SELECTIVE_COMPLETION);
    assert_eq!(call!(ep, tagged.inject(bytes(b"hello"), 5, to, 2)), 0);
    let m = fi::fi_msg_tagged { addr: to, tag: 2, context: context(1), ..Default::default() };
    let found = (0..1000).find_map(|_| {
        assert_eq!(call!(ep, tagged.recvmsg(&m, fi::FI_PEEK)), 0);
        w.next().ok()
    });
    assert_eq!(found.map(|c| (c.op_context, c.len)), Some((context(1), 5)));
    assert_eq!(close(ep), 0);
    w.end();
}

#[test]
fn remote_memory_is_written_and_read() {
    let w = World::new();
    let (ep, to) = w.enabled(0);
    let (here, there) = (bytes(b"abcdef"), bytes(b""));
    let mr = register(&w, there, 42);
    assert_eq!(call!(ep, rma.write(here, 6, NO, to, 2, 42, context(1))), 0);
    assert_eq!(w.next().unwrap().op_context, context(1));
    assert_eq!(text(there, 9), b"\0\0abcdef\0");
    let iov = [
        libc::iovec { iov_base: here, iov_len: 1 },
        libc::iovec { iov_base: here.wrapping_byte_add(8), iov_len: 2 },
    ];
    assert_eq!(call!(ep, rma.readv(iov.as_ptr(), ptr::null_mut(), 2, to, 5, 42, context(2))), 0);
    assert_eq!(w.next().unwrap().op_context, context(2));
    assert_eq!(text(here, 10), b"dbcdef\0\0ef");
    let mut rma = [fi::fi_rma_iov { addr: 0, len: 2, key: 42 }, fi::fi_rma_iov { addr: 10, len: 1, key: 42 }];
    let m = fi::fi_msg_rma {
        msg_iov: iov.as_ptr(),
        desc: ptr::null_mut(),
        iov_count: 2,
        addr: to,
        rma_iov: rma.as_ptr(),
        rma_iov_count: 2,
        context: context(3),
        data: 0,
    };
    assert_eq!(call!(ep, rma.writemsg(&m, 0)), 0);
    assert_eq!(w.next().unwrap().op_context, context(3));
    assert_eq!(text(there, 11), b"deabcdef\0\0f");
    rma[1].len = 2;
    let m = fi::fi_msg_rma { rma_iov: rma.as_ptr(), ..m };
    assert_eq!(call!(ep, rma.writemsg(&m, 0)), EINVAL);
    assert_eq!(call!(ep, rma.writev(iov.as_ptr(), ptr::null_mut(), 9, to, 0, 42, NO)), EINVAL);
    assert_eq!(close(ep), 0);
    assert_eq!(close(mr), 0);
    w.end();
}

#[test]
fn atomics_count_in_elements() {
    let w = World::new();
    let (ep, to) = w.enabled(0);
    let (here, there) = (leak([5u64, 7, 0, 0]), leak([1u64, 2, 3, 0, 0, 0, 0, 0]));
    let (buf, old) = (here.cast::<c_void>(), here.wrapping_byte_add(16).cast::<c_void>());
    let mr = register(&w, there.cast(), 1);
    let (u64s, sum) = (fi::FI_UINT64, fi::FI_SUM);
    assert_eq!(call!(ep, atomic.write(buf, 2, NO, to, 8, 1, u64s, sum, context(1))), 0);
    assert_eq!(w.next().unwrap().op_context, context(1));
    assert_eq!(
        call!(ep, atomic.readwrite(NO, 1, NO, old, NO, to, 16, 1, u64s, fi::FI_ATOMIC_READ, context(2))),
        0
    );
    assert_eq!(w.next().unwrap().op_context, context(2));
    let cswap = fi::FI_CSWAP;
    assert_eq!(
        call!(ep, atomic.compwrite(buf, 1, NO, old, NO, old, NO, to, 16, 1, u64s, cswap, context(3))),
        0
    );
    assert_eq!(w.next().unwrap().op_context, context(3));
    // SAFETY: nothing is under way that writes there.
    unsafe { assert_eq!((*there, *here), ([1, 7, 5, 0, 0, 0, 0, 0], [5, 7, 10, 0])) };
    let nosupp = -(fi::FI_EOPNOTSUPP as isize);
    assert_eq!(call!(ep, atomic.write(buf, 1, NO, to, 0, 1, u64s, cswap, NO)), nosupp);
    assert_eq!(call!(ep, atomic.write(buf, 1, NO, to, 0, 1, 99, sum, NO)), nosupp);
    assert_eq!(call!(ep, atomic.write(buf, 1, NO, to, 0, 1, u64s, 256, NO)), nosupp);
    assert_eq!(call!(ep, atomic.write(buf, 513, NO, to, 0, 1, u64s, sum, NO)), -(fi::FI_EMSGSIZE as isize));
    assert_eq!(call!(ep, atomic.write(buf, usize::MAX, NO, to, 0, 1, u64s, sum, NO)), EINVAL);
    let mut count = 0;
    assert_eq!(call!(ep, atomic.writevalid(u64s, sum, &mut count)), 0);
    assert_eq!(count, 512);
    assert_eq!(call!(ep, atomic.compwritevalid(fi::FI_INT32, fi::FI_MSWAP, &mut count)), 0);
    assert_eq!(count, 1024);
    assert_eq!(call!(ep, atomic.readwritevalid(u64s, cswap, &mut count)), nosupp as c_int);
    assert_eq!((close(ep), close(mr)), (0, 0));
    w.end();
}
