//! Memory of a client, which the client may take back.

use super::*;

/// Memory that is said to be a client's; nothing follows its address.
fn of_client(len: usize) -> Span {
    // SAFETY: memory that is never freed, and that no call of this test accesses.
    unsafe { Span::new(Span::leak(len).addr() as usize, len, Kind::Client) }
}

#[test]
fn memory_of_a_client_is_registered_as_its_client_says_and_by_no_other_way() {
    let mut all = registry_of(&[], true);
    all.register(of_client(64), READ, false).expect("a way");
    assert_eq!(all.device().calls, [Way::Client]);
    assert_eq!(all.describe(Kind::Client, true).as_deref(), Some("Client for peers by its client's mapping"));
    for span in [Span::leak(64), device(64)] {
        all.register(span, READ, false).expect("a way");
    }
    assert!(!all.device().calls[1..].contains(&Way::Client), "{:?}", all.device().calls);
}

/// One client's refusals say nothing of another one.
#[test]
fn memory_of_clients_is_tried_however_often_it_was_refused() {
    let mut all = registry(&[(Way::Client, libc::EOPNOTSUPP)]);
    for _ in 0..20 {
        let refused = all.register(of_client(64), READ, false).map(drop).expect_err("a refusal");
        assert_eq!(refused, [Refusal { way: Some(Way::Client), call: "ibv_reg", errno: libc::EOPNOTSUPP }]);
        assert!(all.may(Kind::Client, true));
    }
    assert_eq!(all.device().calls, [Way::Client; 20]);
}

/// Room is the endpoint's affair where the device lacks it.
#[test]
fn room_that_a_client_lacks_is_none_that_the_end_of_a_request_gives() {
    for errno in [libc::ENOMEM, libc::EAGAIN, libc::ENOSPC] {
        let refusal = Refusal { way: Some(Way::Client), call: "the client's dma_map", errno };
        assert!(!refusal.is_for_now());
        assert!(Refusal { call: "ibv_reg_dmabuf_mr", ..refusal }.is_for_now());
        assert!(Refusal { way: Some(Way::Plain), ..refusal }.is_for_now());
    }
}

/// What says nothing of clients ends no way for other memory either.
#[test]
fn a_kind_of_which_each_way_was_refused_is_not_kept_by_that_of_clients() {
    let ways = [Way::DmabufPcie, Way::Dmabuf, Way::PeerMemory].map(|way| (way, libc::EOPNOTSUPP));
    let mut all = registry(&ways);
    assert!(all.register(device(64), READ, false).is_err());
    assert!(!all.may(Kind::Cuda, true) && all.may(Kind::Client, true));
}

#[test]
fn what_was_taken_back_is_not_found_and_ends_when_it_is_closed() {
    let mut all = registry(&[]);
    let span = of_client(4096);
    let (number, key) = all.register(span, WRITE, true).map(|(number, key)| (number, *key)).expect("a way");
    let part = span.part(100, 100).expect("a part");
    let own = Uses { local_write: true, ..Uses::default() };
    assert_eq!(all.find(part, own).map(|found| found.0), Some(number));
    all.begin(number);
    all.device().gone.insert(key);
    assert!(all.find(part, own).is_none() && all.key(number).is_none());
    assert_eq!(all.key_in_use(number), Some(&key), "the request under way has it");
    assert_eq!(all.device().idle, 0);
    all.end(number).expect("an end");
    assert_eq!(all.device().idle, 1);
    assert_eq!(all.close(number), Ok(true));
    assert!(all.device().live.is_empty());
}
