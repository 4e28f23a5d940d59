//! A domain that a panic was inside of.

use super::*;
use crate::domain::DomainFid;
use crate::ffi::obj;

const OTHER: c_int = -fi::FI_EOTHER;

/// A panic of some call in this domain.
fn poison(domain: *mut fi::fid_domain) {
    let ended: c_int = crate::ffi::guard(|| {
        // SAFETY: an open domain.
        let domain = unsafe { obj::<DomainFid, _>(domain) }?;
        let _engine = domain.shared.lock();
        std::panic::resume_unwind(Box::new("for a test"));
        #[allow(unreachable_code)]
        Ok(())
    });
    assert_eq!(ended, OTHER);
}

#[test]
fn all_of_it_can_be_closed() {
    for auto in [false, true] {
        let [w, other] = [(); 2].map(|()| World::new(Setting { auto, ..Setting::default() }));
        let ((ep, name), (theirs, _)) = (w.ep(), other.ep());
        let memory = leak([7u8; 64]);
        let mr = w.register(memory.cast(), 64, 5);
        assert_eq!(bind(mr, w.cntr, fi::FI_REMOTE_WRITE), 0);
        let mut srx = ptr::null_mut();
        assert_eq!(call!(w.domain, ops.srx_ctx(&mut fi::fi_rx_attr::default(), &mut srx, NO)), 0);
        let unused = {
            let mut ep = ptr::null_mut();
            assert_eq!(call!(w.domain, ops.endpoint(w.info, &mut ep, NO)), 0);
            ep
        };
        // A message that waits for a receive, whose error the peer is to have.
        let (to, long) = (other.insert(&name), vec![1u8; 1 << 20].leak().as_mut_ptr());
        while call!(theirs, msg.send(long.cast(), 1 << 20, NO, to, NO)) == AGAIN {}

        poison(w.domain);
        let mut entry = fi::fi_cq_data_entry::default();
        assert_eq!(call!(w.cq, ops.read((&raw mut entry).cast(), 1)), OTHER as isize);
        assert_eq!(close(w.cq), BUSY);
        assert_eq!(close(w.domain), BUSY);
        let fids: [*mut fi::fid; 4] = [mr.cast(), ep.cast(), unused.cast(), srx.cast()];
        for fid in fids {
            assert_eq!(close(fid), 0);
        }
        w.end();

        let ended = loop {
            match other.read() {
                Err(AGAIN) => std::thread::yield_now(),
                ended => break ended.map(|_| ()),
            }
        };
        assert_eq!(ended, Err(-(fi::FI_EAVAIL as isize)));
        let mut entry = fi::fi_cq_err_entry::default();
        assert_eq!(call!(other.cq, ops.readerr(&mut entry, 0)), 1);
        assert_eq!(entry.err, fi::FI_ECONNRESET);
        assert_eq!(close(theirs), 0);
        other.end();
    }
}
