//! What a test may have the stand-in's devices do.

mod support;

use rdma_sys::*;
use support::*;

#[test]
fn each_status_that_is_asked_of_it_comes_and_the_rest_is_flushed() {
    let (library, program) = library("sv0");
    let context = Context::open(&Device::list(&library).unwrap()[0]).unwrap();
    let hook = program.symbol("stand_in_verbs_status");
    // SAFETY: that function's type.
    let hook: extern "C" fn(u64, u32) = unsafe { std::mem::transmute(hook) };
    for status in IBV_WC_LOC_LEN_ERR..=IBV_WC_GENERAL_ERR {
        let (a, b) = pair(&context);
        hook(2, status);
        for id in 1..=3 {
            a.send(id, IBV_WR_RDMA_WRITE, 0, 8, b.at(0)).unwrap();
        }
        let seen = [a.status(), a.status(), a.status()];
        assert_eq!(seen, [(1, IBV_WC_SUCCESS), (2, status), (3, IBV_WC_WR_FLUSH_ERR)]);
    }
}

#[test]
fn a_queue_that_overruns_is_an_event_and_ends_its_queue_pairs() {
    let (library, _) = library("sv0");
    let context = Context::open(&Device::list(&library).unwrap()[0]).unwrap();
    context.set_nonblocking().unwrap();
    let pd = Pd::new(&context).unwrap();
    let mut a = side(&context, INIT, None, &pd);
    let b = side(&context, INIT, None, &pd);
    let small = Cq::new(&context, 2, None, 0, 55).unwrap();
    a.qp = Qp::new(&pd, &small, &small, None, INIT).unwrap();
    a.cq = small;
    connect(&context, &a, &b, 7);
    for id in 0..3 {
        a.send(id, IBV_WR_RDMA_WRITE, 0, 8, b.at(0)).unwrap();
    }
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while a.qp.query().unwrap().state != IBV_QPS_ERR {
        assert!(std::time::Instant::now() < end, "no error");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(context.event().unwrap(), Some(Event::Cq { kind: IBV_EVENT_CQ_ERR, value: 55 }));
    assert_eq!([a.status(), a.status()], [(0, IBV_WC_SUCCESS), (1, IBV_WC_SUCCESS)]);
    assert!(a.cq.poll(&mut [ibv_wc::default()]).is_err());
}

#[test]
fn delayed_completions_of_a_queue_pair_stay_in_order() {
    // SAFETY: before any thread of the stand-in.
    unsafe { std::env::set_var("VERBS_STAND_IN_DELAY_US", "500") };
    // SAFETY: as above.
    unsafe { std::env::set_var("VERBS_STAND_IN_REORDER", "3") };
    let (library, _) = library("sv0");
    let context = Context::open(&Device::list(&library).unwrap()[0]).unwrap();
    let pairs: Vec<_> = (0..4).map(|_| pair(&context)).collect();
    let start = std::time::Instant::now();
    for (a, b) in &pairs {
        (0..8).for_each(|id| a.send(id, IBV_WR_RDMA_WRITE, 0, 8, b.at(0)).unwrap());
    }
    for (a, _) in &pairs {
        (0..8).for_each(|id| assert_eq!(a.status(), (id, IBV_WC_SUCCESS)));
    }
    assert!(start.elapsed() >= std::time::Duration::from_micros(500));
}
