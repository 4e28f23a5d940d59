use super::*;
use crate::carried::Carried;
use crate::shared::Shared;

/// One with room for so many operations, to a peer as this changes it.
fn list(entries: usize, change: impl FnOnce(&mut Peer)) -> List {
    let mut shared: Shared = crate::watch::tests::direct();
    change(shared.peer.get_mut().unwrap());
    List::of_lane(Arc::new(Core::new(Arc::new(shared))), 5, entries)
}

const AT: usize = 1 << 20;

#[test]
fn a_length_that_no_message_has_is_not_made_into_operations() {
    let mut list = list(usize::MAX, |peer| peer.direct = None);
    // SAFETY: nothing executes the list.
    unsafe {
        let why = list.send(AT, 1 << 46).unwrap_err();
        assert_eq!(why.errno(), libc::EINVAL);
        assert!(list.receive(AT, 1 << 62).is_err() && list.receive(AT, (16 << 20) + 1).is_err());
        assert!(list.items.is_empty());
        assert_eq!(list.core.state().next, [0, 0], "no slot is taken for a message that is refused");
        list.send(AT, 64).unwrap();
    }
}

#[test]
fn between_two_devices_a_message_is_one_operation_however_many_slots_it_takes() {
    let mut list = list(usize::MAX, |_| ());
    // SAFETY: nothing executes the list.
    unsafe {
        list.send(AT, 1 << 30).unwrap();
        assert_eq!(list.items.len(), 1);
        assert_eq!(list.send(AT, 1 << 46).unwrap_err().errno(), libc::EINVAL);
    }
}

#[test]
fn a_put_or_a_get_that_is_refused_takes_no_room() {
    let mut list = list(2, |peer| {
        (peer.direct, peer.agent) = (None, Some(Carried::default()));
        peer.regions = vec![(0, 1 << 40)];
    });
    let of = |len| Put { local: AT, len, region: 0, offset: 0, signal: None };
    // SAFETY: nothing executes the list.
    unsafe {
        for why in [list.put(&of(1 << 40)).unwrap_err(), list.get(&of(1 << 40)).unwrap_err()] {
            assert_eq!(why.errno(), libc::EINVAL);
        }
        assert!(list.items.is_empty());
        list.put(&of(64)).unwrap();
        list.get(&of(64)).unwrap();
        assert_eq!(list.get(&of(64)).unwrap_err().errno(), libc::ENOSPC);
    }
}
