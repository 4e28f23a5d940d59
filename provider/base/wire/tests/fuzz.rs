//! Bytes of a peer, read in every way this crate has. Seeds are in `__fuzz__`; `cargo bolero` searches
//! for more, plain `cargo test` runs these and so many random ones.

use wire::channel::{Hello, Packet, Space, Welcome, WindowId};
use wire::{
    Addr, Aux, Handle, Head, MAX_SEGS, Offer, Pieces, RmaSeg, Seg, Status, put, take, take_many, ucx,
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

#[test]
fn frames() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let mut rest = bytes;
        let Some(head) = take::<Head>(&mut rest) else {
            assert!(bytes.len() < Head::LEN && Head::of(bytes).is_none());
            return;
        };
        assert_eq!(head.as_bytes(), &bytes[..Head::LEN]);
        if let (Some(op), Some(flags)) = (head.op(), head.flags()) {
            // What is understood says the same again.
            let again = Head::new(op, flags, head.aux.get(), head.tag.get(), head.data.get());
            assert_eq!(again.as_bytes(), head.as_bytes());
        }
        let aux = head.aux.get();
        assert!(Aux::parse_rma(aux).is_none_or(|a| Aux::rma(a.rma.into(), a.segs.into()) == aux));
        assert!(Aux::parse_atomic(aux).is_none_or(|a| Aux::atomic(a.rma.into(), a.op, a.datatype) == aux));
        let status = Status::from_u16(aux);
        assert!(status == Status::Malformed || status as u16 == aux);
        let mut copy = Vec::new();
        let mut left = rest;
        if let (Some(offer), Some(pieces)) = (take::<Offer>(&mut left), take::<Pieces>(&mut left)) {
            put(&mut copy, &offer);
            put(&mut copy, &pieces);
            for n in 0..=MAX_SEGS {
                let mut left = left;
                let (Some(rma), segs) = (take_many::<RmaSeg>(&mut left, n), take_many::<Seg>(&mut left, n))
                else {
                    break;
                };
                assert!(rma.len() == n && segs.is_none_or(|s| s.len() == n));
            }
        }
        assert!(rest.starts_with(&copy));
        assert!(take_many::<RmaSeg>(&mut rest, usize::MAX).is_none());
    });
}

/// What is read of `bytes` says the same again, and what is too short is not read.
fn again<T: FromBytes + IntoBytes + Immutable>(bytes: &mut &[u8]) -> Option<T> {
    let before = *bytes;
    let read = take::<T>(bytes);
    match &read {
        Some(read) => {
            assert!(before.starts_with(read.as_bytes()) && before.len() - bytes.len() == size_of::<T>())
        }
        None => assert!(before.len() < size_of::<T>()),
    }
    read
}

#[test]
fn ucx_frames() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let Some((&head, mut rest)) = bytes.split_first_chunk::<{ ucx::Head::LEN }>() else { return };
        let Some(kind) = ucx::Kind::from_u8(head[0]) else { return };
        assert_eq!(ucx::Head::bytes(kind, head[1])[..2], head[..2]);
        assert!(ucx::What::from_u8(head[1]).is_none_or(|what| what as u8 == head[1]));
        match kind {
            ucx::Kind::Am => {}
            ucx::Kind::Request => drop(again::<ucx::Request>(&mut rest)),
            ucx::Kind::Reply => drop(again::<ucx::Reply>(&mut rest)),
            ucx::Kind::Coop => {
                let Some(share) = again::<ucx::CoopOffer>(&mut rest) else { return };
                let (slot, generation) = share.counter();
                assert_eq!(ucx::CoopOffer::name(slot, generation), share.counter);
                while again::<Seg>(&mut rest).is_some() {}
            }
        }
    });
}

#[test]
fn ucx_keys() {
    bolero::check!().with_max_len(200).for_each(|bytes: &[u8]| {
        let mut rest = bytes;
        if let Some(key) = again::<ucx::HostKey>(&mut rest) {
            assert_eq!(key.tag, bytes[ucx::TAG_AT..][..4]);
        }
        let mut rest = bytes;
        if let Some(key) = again::<ucx::DeviceKey>(&mut rest) {
            assert_eq!(key.tag, bytes[ucx::TAG_AT..][..4]);
            assert!(again::<ucx::HandleList>(&mut &key.handle[..]).is_some());
            assert!(again::<Handle>(&mut &key.handle[..]).is_some());
        }
        let mut rest = bytes;
        again::<ucx::HostAddr>(&mut rest);
        again::<ucx::DeviceAddr>(&mut rest);
        again::<ucx::Place>(&mut rest);
    });
}

#[test]
fn addresses() {
    bolero::check!().with_max_len(40).for_each(|bytes: &[u8]| {
        let Some(&bytes) = bytes.first_chunk::<{ Addr::LEN }>() else { return };
        // As they are, and with what few random bytes have: a family, and zeros.
        let mut near = bytes;
        near[0] = if bytes[0] & 1 == 0 { 4 } else { 6 };
        near[1] = u8::from(bytes[1] > 200);
        if bytes[0] & 2 == 0 {
            near[4..8].fill(0);
            near[12..].fill(0);
        } else if bytes[0] & 4 == 0 {
            near[8..18].fill(0);
            near[18..20].fill(0xff);
        }
        for bytes in [bytes, near] {
            if let Some(addr) = Addr::decode(&bytes) {
                assert_eq!(addr.encode(), bytes);
                assert_eq!(Addr::new(addr.sock()), addr);
            }
        }
    });
}

/// A sound packet with a few of its bytes changed.
fn near(sound: &[u8], changes: &[u8]) -> Vec<u8> {
    let mut near = sound.to_vec();
    for change in changes.chunks_exact(2).take(3) {
        near[usize::from(change[0]) % sound.len()] = change[1];
    }
    near
}

#[test]
fn hellos() {
    let name = |s: &str| Addr::new(s.parse().unwrap());
    let sound = Hello {
        version: 1,
        ring: 7,
        incarnation: 7,
        from: name("10.0.0.1:5"),
        to: name("[fe80::1%3]:6"),
        space: Space { guard: 1, token: 2, pid: 3, keeper: 4 },
    };
    bolero::check!().with_max_len(128).for_each(|bytes: &[u8]| {
        for bytes in [bytes, &near(&sound.encode(), bytes)] {
            if let Some(hello) = Hello::decode(bytes) {
                assert_eq!(hello.encode(), bytes);
            }
        }
    });
}

#[test]
fn packets() {
    let (incarnation, id) = (7, WindowId { maker: 8, number: 9 });
    let welcome = Welcome { incarnation, space: Space { guard: 1, token: 2, pid: 3, keeper: 4 } };
    let sound = [
        Packet::Wake,
        Packet::Welcome(welcome),
        Packet::Refused,
        Packet::Want(id),
        Packet::Grant(id),
        Packet::Deny(id),
        Packet::Exhausted,
    ];
    bolero::check!().with_max_len(64).for_each(|bytes: &[u8]| {
        let changed = sound.map(|packet| near(&packet.encode(), bytes));
        for bytes in changed.iter().map(Vec::as_slice).chain([bytes]) {
            if let Some(packet) = Packet::decode(bytes) {
                assert_eq!(*packet.encode(), *bytes);
            }
        }
    });
}

/// What is said by a connection to agree on a fabric, and what is before messages there.
#[test]
fn meetings() {
    use wire::session::{Control, MOST_ADDRESS, Mark};
    bolero::check!().for_each(|bytes: &[u8]| {
        if let Some(mark) = bytes.first_chunk() {
            assert_eq!(Mark::decode(mark).encode(), *mark);
        }
        match Control::decode(bytes) {
            None => {}
            Some(Control::Other(_)) => assert!(Control::is_one(bytes)),
            Some(said) => {
                assert_eq!(Control::decode(&said.encode()), Some(said.clone()));
                if let Control::Announce(said) = said {
                    assert!(said.address.len() <= MOST_ADDRESS && said.address.len() < bytes.len());
                }
            }
        }
    });
}
