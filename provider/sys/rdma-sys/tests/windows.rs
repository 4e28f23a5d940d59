//! Memory windows over the stand-in: whom a key serves, and which binding is refused.

mod support;

use rdma_sys::*;
use support::*;

const READ: Access = Access::REMOTE_READ;
const WRITE: Access = Access::REMOTE_WRITE;

fn context(device: &str) -> Context {
    let (library, _) = library(device);
    Context::open(&Device::list(&library).unwrap()[0]).unwrap()
}

/// Memory of `of` registered for windows, beside the registration that it has.
fn registered(of: &mut Side, access: Access) -> Mr {
    let at = of.memory.as_mut_ptr().cast();
    // SAFETY: as in [`side`].
    unsafe { of.pd.register(at, 4096, access) }.unwrap()
}

/// Posts what binds `window`, and says how it ends.
fn bind(of: &Side, bind: Bind) -> u32 {
    let mut request = ibv_send_wr { wr_id: 77, send_flags: IBV_SEND_SIGNALED, ..Default::default() };
    bind.put_in(&mut request);
    // SAFETY: a window and a registration that are there until the completion.
    unsafe { of.qp.post_send(&mut request) }.unwrap();
    let (id, status) = of.status();
    assert_eq!(id, 77);
    status
}

#[test]
fn a_window_serves_its_queue_pair_its_bytes_and_its_use_alone() {
    let context = context("sv0");
    let pd = Pd::new(&context).unwrap();
    let fresh = || (side(&context, INIT, None, &pd), side(&context, INIT, None, &pd));
    let ((a, mut b), (c, d)) = (fresh(), fresh());
    connect(&context, &a, &b, 7);
    connect(&context, &c, &d, 7);
    let mr = registered(&mut b, Access::LOCAL_WRITE.and(Access::WINDOWS));
    let window = pd.window().unwrap();
    let at = b.memory.as_ptr() as u64 + 1000;
    let wanted = window.bind(&mr, at, 100, WRITE);
    assert_eq!(bind(&b, wanted), IBV_WC_SUCCESS);
    let key = wanted.rkey();
    assert!(key != mr.rkey());
    a.send(1, IBV_WR_RDMA_WRITE, 0, 100, Some((at, key))).unwrap();
    assert_eq!(a.status(), (1, IBV_WC_SUCCESS));
    // Another queue pair of the same domain, to which the same process has connected.
    let before = b.memory.clone();
    c.send(2, IBV_WR_RDMA_WRITE, 2000, 8, Some((at, key))).unwrap();
    assert_eq!(c.status(), (2, IBV_WC_REM_ACCESS_ERR));
    // The registration itself serves no peer.
    a.send(3, IBV_WR_RDMA_WRITE, 2000, 8, Some((at, mr.rkey()))).unwrap();
    assert_eq!(a.status(), (3, IBV_WC_REM_ACCESS_ERR));
    assert!(b.memory == before);
    assert_eq!(mr.deregister().unwrap_err().errno(), libc::EBUSY);
    window.deallocate().unwrap();
}

#[test]
fn what_is_outside_of_a_window_or_not_allowed_by_it_fails() {
    let context = context("sv0");
    for (opcode, off, len) in
        [(IBV_WR_RDMA_WRITE, 0, 101), (IBV_WR_RDMA_WRITE, -1, 8), (IBV_WR_RDMA_READ, 0, 8)]
    {
        let (a, mut b) = pair(&context);
        let mr = registered(&mut b, Access::LOCAL_WRITE.and(Access::WINDOWS));
        let window = b.pd.window().unwrap();
        let at = b.memory.as_ptr() as u64 + 1000;
        let wanted = window.bind(&mr, at, 100, WRITE);
        assert_eq!(bind(&b, wanted), IBV_WC_SUCCESS);
        a.send(1, opcode, 0, len, Some((at.wrapping_add_signed(off), wanted.rkey()))).unwrap();
        assert_eq!(a.status(), (1, IBV_WC_REM_ACCESS_ERR), "{opcode} at {off}");
        drop(window);
    }
}

#[test]
fn a_window_that_ended_serves_nothing() {
    let context = context("sv0");
    for invalidates in [true, false] {
        let (a, mut b) = pair(&context);
        let mr = registered(&mut b, Access::WINDOWS);
        let window = b.pd.window().unwrap();
        let at = b.memory.as_ptr() as u64;
        let wanted = window.bind(&mr, at, 4096, READ);
        assert_eq!(bind(&b, wanted), IBV_WC_SUCCESS);
        a.send(1, IBV_WR_RDMA_READ, 0, 8, Some((at, wanted.rkey()))).unwrap();
        assert_eq!(a.status(), (1, IBV_WC_SUCCESS));
        if invalidates {
            let flags = IBV_SEND_SIGNALED;
            let mut request =
                ibv_send_wr { opcode: IBV_WR_LOCAL_INV, send_flags: flags, ..Default::default() };
            request.anon1.invalidate_rkey = wanted.rkey();
            // SAFETY: no memory.
            unsafe { b.qp.post_send(&mut request) }.unwrap();
            assert_eq!(b.status(), (0, IBV_WC_SUCCESS));
            mr.deregister().unwrap();
        } else {
            window.deallocate().unwrap();
            mr.deregister().unwrap();
        }
        a.send(2, IBV_WR_RDMA_READ, 0, 8, Some((at, wanted.rkey()))).unwrap();
        assert_eq!(a.status(), (2, IBV_WC_REM_ACCESS_ERR));
    }
}

#[test]
fn a_binding_that_the_rules_forbid_fails() {
    let context = context("sv0");
    type Case = (&'static str, Access, Access, i64, u64);
    let windows = Access::LOCAL_WRITE.and(Access::WINDOWS);
    let cases: [Case; 6] = [
        ("a registration without windows", Access::LOCAL_WRITE, READ, 0, 8),
        ("a writer of what the device does not write", Access::WINDOWS, WRITE, 0, 8),
        ("a byte beyond the end", windows, READ, 1, 4096),
        ("a byte before the first", windows, READ, -1, 8),
        ("no byte", windows, READ, 0, 0),
        ("a sum that wraps", windows, READ, 8, u64::MAX),
    ];
    for (what, access, wanted, off, len) in cases {
        let (_a, mut b) = pair(&context);
        let mr = registered(&mut b, access);
        let window = b.pd.window().unwrap();
        let at = (b.memory.as_ptr() as u64).wrapping_add_signed(off);
        assert_eq!(bind(&b, window.bind(&mr, at, len, wanted)), IBV_WC_MW_BIND_ERR, "{what}");
        assert_eq!(b.qp.query().unwrap().state, IBV_QPS_ERR, "{what}");
    }
    let (_a, mut b) = pair(&context);
    let mr = registered(&mut b, windows);
    let other = Pd::new(&context).unwrap();
    let window = other.window().unwrap();
    let at = b.memory.as_ptr() as u64;
    assert_eq!(bind(&b, window.bind(&mr, at, 8, READ)), IBV_WC_MW_BIND_ERR, "another domain");
    // One that is bound is bound no second time.
    let (_a, mut b) = pair(&context);
    let mr = registered(&mut b, windows);
    let window = b.pd.window().unwrap();
    let twice = window.bind(&mr, b.memory.as_ptr() as u64, 8, READ);
    assert_eq!((bind(&b, twice), bind(&b, twice)), (IBV_WC_SUCCESS, IBV_WC_MW_BIND_ERR));
    drop(window);
}

#[test]
fn a_device_without_windows_says_so() {
    let context = context("sv0:nomw");
    let flags = context.attributes().device_cap_flags;
    assert_eq!(flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B, 0);
    assert_eq!(Pd::new(&context).unwrap().window().unwrap_err().errno(), libc::EOPNOTSUPP);
}
