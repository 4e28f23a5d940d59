//! Event queues, and what is answered there.

use super::*;

fn event(w: &World) -> Result<(u32, fi::fi_eq_entry), isize> {
    let (mut code, mut entry) = (0, fi::fi_eq_entry::default());
    let n = call!(w.eq, ops.read(&mut code, (&raw mut entry).cast(), size_of::<fi::fi_eq_entry>(), 0));
    if n == size_of::<fi::fi_eq_entry>() as isize { Ok((code, entry)) } else { Err(n) }
}

#[test]
fn insertions_may_be_answered_later() {
    let w = World::new(Setting::default());
    let mut av = ptr::null_mut();
    let attr = &mut fi::fi_av_attr { flags: fi::FI_EVENT, ..Default::default() };
    assert_eq!(call!(w.domain, ops.av_open(attr, &mut av, NO)), 0);
    let mut names = [0u8; 32];
    names[..8].copy_from_slice(&[2, 0, 0x10, 0, 127, 0, 0, 1]);
    let context: *mut c_void = leak(0u8).cast();
    let mut addrs = [1; 2];
    let insert = |addrs: &mut [u64; 2]| {
        call!(av, ops.insert(names.as_ptr().cast(), 2, addrs.as_mut_ptr(), 0, context))
    };
    assert_eq!(insert(&mut addrs), -fi::FI_ENOEQ);
    assert_eq!(bind(av, w.eq, 0), 0);
    assert_eq!(insert(&mut addrs), 0);
    assert_eq!(addrs, [0, fi::FI_ADDR_NOTAVAIL]);
    assert_eq!(event(&w).unwrap_err(), -(fi::FI_EAVAIL as isize));
    let mut failed = fi::fi_eq_err_entry::default();
    assert!(call!(w.eq, ops.readerr(&mut failed, 0)) > 0);
    assert_eq!((failed.data, failed.err, failed.context), (1, fi::FI_EINVAL, context));
    let (code, entry) = event(&w).unwrap();
    assert_eq!((code, entry.data, entry.context), (fi::FI_AV_COMPLETE, 1, context));
    assert_eq!(entry.fid, av.cast());
    assert_eq!(event(&w).unwrap_err(), AGAIN);
    assert_eq!(close(w.eq), BUSY);
    assert_eq!(close(av), 0);
    w.end();
}

#[test]
fn registrations_may_be_announced() {
    let w = World::new(Setting::default());
    assert_eq!(bind(w.domain, w.eq, fi::FI_REG_MR), 0);
    let mr = w.register(leak([0u8; 8]).cast(), 8, 3);
    let (code, entry) = event(&w).unwrap();
    assert_eq!((code, entry.fid), (fi::FI_MR_COMPLETE, mr.cast()));
    assert_eq!(close(mr), 0);
    w.end();
}

#[test]
fn an_event_that_does_not_fit_stays() {
    let w = World::new(Setting { wait: fi::FI_WAIT_NONE, ..Setting::default() });
    let sent = [5u8; 40];
    assert_eq!(call!(w.eq, ops.write(9, sent.as_ptr().cast(), 40, 0)), 40);
    let (mut code, mut got) = (0, [0u8; 40]);
    let small = call!(w.eq, ops.read(&mut code, got.as_mut_ptr().cast(), 39, 0));
    assert_eq!(small, -(fi::FI_ETOOSMALL as isize));
    for flags in [fi::FI_PEEK, 0] {
        assert_eq!(call!(w.eq, ops.read(&mut code, got.as_mut_ptr().cast(), 40, flags)), 40);
        assert_eq!((code, got), (9, sent));
    }
    assert_eq!(event(&w).unwrap_err(), AGAIN);
    let n = call!(w.eq, ops.sread(&mut code, got.as_mut_ptr().cast(), 40, 0, 0));
    assert_eq!(n, -(fi::FI_ENOSYS as isize));
    w.end();
}
