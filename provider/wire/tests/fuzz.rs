//! Bytes of a peer, read in every way this crate has. Seeds are in `__fuzz__`; `cargo bolero` searches
//! for more, plain `cargo test` runs these and so many random ones.

use wire::{Addr, Aux, Head, MAX_SEGS, Offer, Pieces, RmaSeg, Seg, Status, put, take, take_many};
use zerocopy::IntoBytes;

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
