//! Whether a peer is worth asking for its help.

/// After this many transfers in a row of which a peer took nothing only one in `RARELY` is announced to it:
/// it is busy elsewhere.
const PATIENCE: u32 = 4;
const RARELY: u32 = 32;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Can {
    /// Nothing was copied directly yet, so it is not known whether that works.
    #[default]
    Unknown,
    Yes,
    /// The peer tried and could not.
    No,
}

/// What is known of a peer as the other side of cooperative copies.
#[derive(Clone, Copy, Debug, Default)]
pub struct Helper {
    can: Can,
    /// Transfers in a row of which it took nothing.
    missed: u32,
}

impl Helper {
    /// Direct copies work, here at least; whether that is new.
    pub fn works(&mut self) -> bool {
        let new = self.can == Can::Unknown;
        if new {
            self.can = Can::Yes;
        }
        new
    }

    /// The peer tried and could not.
    pub fn has_failed(&mut self) {
        self.can = Can::No;
    }

    /// Whether the peer can copy its part, as far as is known.
    pub fn can(&self) -> bool {
        self.can == Can::Yes
    }

    /// Whether the next transfer is to be announced to the peer. To be called once for each, with
    /// [`Helper::has_taken`] if it was announced.
    pub fn is_worth_asking(&mut self) -> bool {
        if !self.can() {
            return false;
        }
        let asks = self.missed < PATIENCE || self.missed % RARELY == 0;
        if !asks {
            self.missed += 1;
        }
        asks
    }

    /// How many pieces the peer took of an announced transfer.
    pub fn has_taken(&mut self, pieces: u16) {
        self.missed = if pieces > 0 { 0 } else { self.missed.saturating_add(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_never_helps_is_asked_rarely_and_one_that_does_each_time() {
        let mut helper = Helper::default();
        assert!(!helper.is_worth_asking(), "it is not known whether direct copies work");
        assert!(helper.works() && !helper.works());
        let mut ask = |took: u16| {
            let asked = helper.is_worth_asking();
            if asked {
                helper.has_taken(took);
            }
            asked
        };
        assert_eq!((0..1000).filter(|_| ask(0)).count(), PATIENCE as usize + 1000 / RARELY as usize);
        while !ask(1) {}
        assert!((0..100).all(|_| ask(1)));
        helper.has_failed();
        assert!(!helper.is_worth_asking() && !helper.works());
    }
}
