//! What a hostile peer says, drawn from bytes.

use wire::Addr;
use wire::session::{MOST_RAILS, RailNote, Verdict};

/// The bytes, front to back; zeros once they are used up.
pub struct Draw<'a>(pub &'a [u8]);

impl Draw<'_> {
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    pub fn below(&mut self, n: u8) -> u8 {
        self.byte() % n
    }

    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    pub fn many(&mut self, n: usize) -> Vec<u8> {
        (0..n.min(self.0.len())).map(|_| self.byte()).collect()
    }

    /// A number that may be taken for something; `heard`: numbers that the victim has said.
    pub fn word(&mut self, heard: &[u64]) -> u64 {
        let (kind, small) = (self.below(8), u64::from(self.byte()));
        match kind {
            0 => small,
            1 => small << 6,
            2 => (small >> 6 << 32 | 1 << 32) | (small & 31),
            3 => 1 << (small & 63),
            4 => u64::MAX - small,
            5 | 6 if !heard.is_empty() => heard[small as usize % heard.len()],
            _ => u64::from_le_bytes([0; 8].map(|_: u8| self.byte())),
        }
    }

    /// One of these names, or one that leads elsewhere.
    pub fn name(&mut self, all: &[Addr]) -> Addr {
        let (which, port) = (self.byte(), u16::from(self.byte()) << 3 | 1);
        match all.get(usize::from(which >> 4)) {
            Some(name) => *name,
            None if which & 7 == 1 => Addr::new(([127, 0, 0, 1], port).into()),
            None if which & 7 == 2 => Addr::new(([0xfe80, 0, 0, 0, 0, 0, 0, 1], port).into()),
            None if which & 7 == 3 => Addr::new(([10, 9, 8, which], port).into()),
            None => all[0],
        }
    }

    /// Bytes of the victim's peer, of which now and then some are others.
    pub fn spoil(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = bytes.to_vec();
        match self.byte() {
            0..=2 => {
                for _ in 0..1 + self.below(4) {
                    let at = usize::from(self.byte()) % out.len().max(1);
                    let other = self.byte();
                    out.iter_mut().skip(at).take(1).for_each(|b| *b = other);
                }
            }
            3 | 4 => out.truncate(usize::from(self.byte()) % (out.len() + 1)),
            5 => out.extend([self.byte(); 9]),
            _ => {}
        }
        out
    }

    pub fn frame(&mut self, heard: &[u64]) -> Vec<u8> {
        if self.below(32) == 0 {
            let n = self.byte();
            return self.many(n.into());
        }
        let mut frame = vec![
            1 + self.below(22),
            self.flags(),
            self.byte(),
            [0, 0, 0, self.below(32)][usize::from(self.below(4))],
        ];
        for _ in 0..2 + self.below(8) {
            frame.extend(self.word(heard).to_le_bytes());
        }
        let long = [0, 0, 8, 300, 5_000, 70_000, 200_000, 1_000_000][usize::from(self.below(8))];
        frame.resize(frame.len() + long, 0x5a);
        frame
    }

    fn flags(&mut self) -> u8 {
        match self.below(4) {
            0 | 1 => 0,
            2 => 1 << self.below(7),
            _ => self.below(130),
        }
    }

    pub fn note(&mut self, all: &[Addr]) -> Vec<u8> {
        let (kind, number) = (self.below(8), self.below(9));
        match kind {
            0 | 1 => RailNote::Next(number).encode(),
            2 | 3 => RailNote::Up(number).encode(),
            4 | 5 => {
                let at = (0..usize::from(number).min(MOST_RAILS - 1)).map(|_| self.name(all)).collect();
                RailNote::At(at).encode()
            }
            _ => self.many(8 * usize::from(number)),
        }
    }

    pub fn verdict(&mut self) -> Verdict {
        match self.below(14) {
            0 => Verdict::Crossing,
            1 => Verdict::Known,
            2 => Verdict::Full,
            3 => Verdict::Other,
            4 => Verdict::Busy,
            5 => Verdict::Denied,
            _ => Verdict::Accepted,
        }
    }
}
