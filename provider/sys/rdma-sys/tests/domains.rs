//! Protection domains over the stand-in: a key is of use to the queue pairs of its own domain, and to all of those.

mod support;

use rdma_sys::*;
use support::*;

fn context() -> Context {
    let (library, _) = library("sv0");
    Context::open(&Device::list(&library).unwrap()[0]).unwrap()
}

/// Of an owner with two queue pairs, the second of which is in the domain of the first, or in one of its own: how a
/// write and a read by the peer of the second end, with the key of memory in the domain of the first.
fn by_another(is_shared: bool) -> [u32; 2] {
    let context = context();
    [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ].map(|opcode| {
        let pd = Pd::new(&context).unwrap();
        let theirs = if is_shared { pd.clone() } else { Pd::new(&context).unwrap() };
        let peers = Pd::new(&context).unwrap();
        let (peer, owner) = (side(&context, INIT, None, &peers), side(&context, INIT, None, &pd));
        let (thief, other) = (side(&context, INIT, None, &peers), side(&context, INIT, None, &theirs));
        connect(&context, &peer, &owner, 7);
        connect(&context, &thief, &other, 7);
        peer.send(1, opcode, 0, 8, owner.at(0)).unwrap();
        assert_eq!(peer.status(), (1, IBV_WC_SUCCESS), "the peer that it is for");
        thief.send(2, opcode, 0, 8, owner.at(0)).unwrap();
        thief.status().1
    })
}

#[test]
fn a_key_serves_all_queue_pairs_of_its_domain_and_no_others() {
    assert_eq!(by_another(true), [IBV_WC_SUCCESS; 2]);
    assert_eq!(by_another(false), [IBV_WC_REM_ACCESS_ERR; 2]);
}

#[test]
fn memory_of_a_request_has_to_be_of_the_domain_of_its_queue_pair() {
    let context = context();
    for opcode in [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ] {
        let (mut a, b) = pair(&context);
        let other = Pd::new(&context).unwrap();
        // SAFETY: as in [`side`].
        a.mr = unsafe { other.register(a.memory.as_mut_ptr().cast(), 4096, ALL) }.unwrap();
        a.send(1, opcode, 0, 8, b.at(0)).unwrap();
        assert_eq!(a.status(), (1, IBV_WC_LOC_PROT_ERR));
    }
}

/// A shared receive queue may be of another domain than the queue pairs that it serves: its memory is of its own.
#[test]
fn receives_of_a_shared_queue_are_of_the_domain_of_that_queue() {
    let context = context();
    for is_of_queue in [true, false] {
        let (pd, other) = (Pd::new(&context).unwrap(), Pd::new(&context).unwrap());
        let srq = Srq::new(&other, SrqInit { max_wr: 4, max_sge: 1 }, 0).unwrap();
        let a = side(&context, INIT, None, &pd);
        let mut b = side(&context, QpInit { max_recv_wr: 0, ..INIT }, Some(&srq), &pd);
        connect(&context, &a, &b, 7);
        if is_of_queue {
            // SAFETY: as in [`side`].
            b.mr = unsafe { other.register(b.memory.as_mut_ptr().cast(), 4096, ALL) }.unwrap();
        }
        // SAFETY: registered, and the test leaves it.
        unsafe { srq.post(5, &[b.sge(0, 8)]) }.unwrap();
        a.send(1, IBV_WR_SEND, 0, 8, None).unwrap();
        let (sent, came) = match is_of_queue {
            true => (IBV_WC_SUCCESS, IBV_WC_SUCCESS),
            false => (IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR),
        };
        assert_eq!((a.status(), b.status()), ((1, sent), (5, came)));
    }
}
