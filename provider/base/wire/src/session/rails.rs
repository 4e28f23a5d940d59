//! Notes: what is said on a connection besides frames, which is of the further connections that carry its
//! long frames, but for a probe.

use crate::Addr;

/// Most connections that two endpoints may have, the first one included.
pub const MOST_RAILS: usize = 8;

/// Longest note.
pub const NOTE: usize = 8 + (MOST_RAILS - 1) * Addr::LEN;

const NEXT: u8 = 1;
const UP: u8 = 2;
const AT: u8 = 3;
const PROBE: u8 = 4;

/// A record among the frames of a connection.
///
/// | bytes | what |
/// |---|---|
/// | 0 | 1 `Next`, 2 `Up`, 3 `At`, 4 `Probe` |
/// | 1 | the rail's number; of `At`, how many addresses; of `Probe` 0 |
/// | 2..8 | 0 |
/// | 8.. | of `At`, the addresses, each as [`Addr::encode`] has it |
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RailNote {
    /// The next frame is the next one of this rail.
    Next(u8),
    /// This rail may be used. Said by the side that made the connection.
    Up(u8),
    /// Where the side that was called can be called for rails: 1 to [`MOST_RAILS`] - 1 addresses. Said once,
    /// by that side.
    At(Vec<Addr>),
    /// Nothing. The receiver's kernel acknowledges it, or resets a connection that is none any more.
    Probe,
}

/// Whether a rail may have this number.
pub(super) fn is_rail(number: u8) -> bool {
    (1..MOST_RAILS).contains(&usize::from(number))
}

impl RailNote {
    /// Its bytes. Of too many addresses the first ones.
    pub fn encode(&self) -> Vec<u8> {
        let of = |what: u8, number: u8| vec![what, number, 0, 0, 0, 0, 0, 0];
        match self {
            RailNote::Next(rail) => of(NEXT, *rail),
            RailNote::Up(rail) => of(UP, *rail),
            RailNote::Probe => of(PROBE, 0),
            RailNote::At(all) => {
                let all = &all[..all.len().min(MOST_RAILS - 1)];
                let mut out = of(AT, all.len() as u8);
                all.iter().for_each(|addr| out.extend(addr.encode()));
                out
            }
        }
    }

    /// What these bytes say; `None` if they are no note.
    pub fn decode(bytes: &[u8]) -> Option<RailNote> {
        let (&[what, number, 0, 0, 0, 0, 0, 0], rest) = bytes.split_first_chunk::<8>()? else { return None };
        match what {
            PROBE if number == 0 && rest.is_empty() => Some(RailNote::Probe),
            _ if !is_rail(number) => None,
            NEXT if rest.is_empty() => Some(RailNote::Next(number)),
            UP if rest.is_empty() => Some(RailNote::Up(number)),
            AT if rest.len() == usize::from(number) * Addr::LEN => {
                let all = rest.chunks_exact(Addr::LEN);
                all.map(|addr| Addr::decode(addr.first_chunk()?)).collect::<Option<_>>().map(RailNote::At)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(s: &str) -> Addr {
        Addr::new(s.parse().unwrap())
    }

    /// The bytes on the wire are a promise: a change here is a new [`super::super::VERSION`].
    #[test]
    fn golden_bytes() {
        let hex = |note: RailNote| -> String { note.encode().iter().map(|b| format!("{b:02x}")).collect() };
        assert_eq!(hex(RailNote::Next(1)), "0101000000000000");
        assert_eq!(hex(RailNote::Up(7)), "0207000000000000");
        assert_eq!(hex(RailNote::Probe), "0400000000000000");
        let at = RailNote::At(vec![addr("10.1.2.3:258"), addr("[2001:db8::7]:80")]);
        let golden = [
            "0302000000000000",
            "04000201000000000a010203000000000000000000000000",
            "060050000000000020010db8000000000000000000000007",
        ];
        assert_eq!(hex(at), golden.concat());
    }

    #[test]
    fn notes_say_what_was_said_and_nonsense_is_none() {
        let most = RailNote::At(vec![addr("10.1.2.3:258"); MOST_RAILS - 1]);
        assert_eq!(most.encode().len(), NOTE);
        for note in [RailNote::Next(1), RailNote::Up(7), RailNote::Probe, most] {
            let good = note.encode();
            assert_eq!(RailNote::decode(&good), Some(note));
            for len in 0..good.len() {
                assert_eq!(RailNote::decode(&good[..len]), None, "{len} bytes");
            }
            assert_eq!(RailNote::decode(&[&good[..], &[0]].concat()), None);
            for (at, byte) in [(0, 0), (0, 5), (1, 9), (1, 8), (2, 1), (7, 1)] {
                let mut bad = good.clone();
                bad[at] = byte;
                assert_eq!(RailNote::decode(&bad), None, "byte {at}");
            }
        }
        let mut bad = RailNote::At(vec![addr("10.1.2.3:258")]).encode();
        bad[8] = 5;
        assert_eq!(RailNote::decode(&bad), None, "no address");
    }
}
