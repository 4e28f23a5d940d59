//! Bytes of messages that wait.

/// Payloads of up to so many bytes wait in the place of their message.
pub(crate) const SHORT: usize = 40;

/// Buffers for longer ones have one of these sizes: 128 bytes, and four from each power of two to the next up
/// to 64 KiB, so that at most a fifth of a buffer is not used. Longer payloads have buffers of their own
/// size.
const LEAST: usize = 128;
const SIZES: usize = 1 + 4 * 9;
/// Most bytes of buffers that are kept to be used again.
const SPARE: usize = 1 << 20;

/// The bytes of one message, which knows how many they are.
#[derive(Debug)]
pub(crate) enum Payload {
    Short([u8; SHORT]),
    Long(Box<[u8]>),
}

impl Payload {
    /// As many of the bytes as there are of `len`.
    #[inline]
    pub(crate) fn bytes(&self, len: usize) -> &[u8] {
        let all = match self {
            Payload::Short(all) => &all[..],
            Payload::Long(all) => all,
        };
        &all[..len.min(all.len())]
    }

    /// Room for the first `len` bytes.
    #[inline]
    pub(crate) fn room(&mut self, len: usize) -> &mut [u8] {
        let all = match self {
            Payload::Short(all) => &mut all[..],
            Payload::Long(all) => all,
        };
        let len = len.min(all.len());
        &mut all[..len]
    }
}

/// Buffers that are used again.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// By size.
    spare: [Vec<Box<[u8]>>; SIZES],
    bytes: usize,
}

impl Default for Buffers {
    fn default() -> Buffers {
        Buffers { spare: [const { Vec::new() }; SIZES], bytes: 0 }
    }
}

impl Buffers {
    /// Which of the sizes is enough for `len` bytes, and how many bytes that is; `None`: no buffers of that
    /// size are kept.
    #[inline]
    fn size_of(len: usize) -> Option<(usize, usize)> {
        // A size is 5, 6, 7 or 8 quarters of the power of two below it.
        let last = len.max(LEAST) - 1;
        let power = last.ilog2() as usize;
        let quarters = (last >> (power - 2)) + 1;
        let at = 4 * power + quarters - (4 * (LEAST.ilog2() as usize - 1) + 8);
        (at < SIZES).then_some((at, quarters << (power - 2)))
    }

    /// One of at least `len` bytes, with anything in it.
    pub(crate) fn take(&mut self, len: usize) -> Box<[u8]> {
        let Some((at, size)) = Self::size_of(len) else { return blank(len) };
        match self.spare[at].pop() {
            Some(buffer) => {
                self.bytes -= buffer.len();
                buffer
            }
            None => blank(size),
        }
    }

    /// Takes one back.
    pub(crate) fn give_back(&mut self, buffer: Box<[u8]>) {
        let len = buffer.len();
        let Some((at, _)) = Self::size_of(len).filter(|(_, size)| len == *size) else { return };
        if self.bytes + len <= SPARE || self.make_room(at, len) {
            self.bytes += len;
            self.spare[at].push(buffer);
        }
    }

    /// Frees buffers of other sizes for one more of this: messages have been of another length before.
    #[cold]
    fn make_room(&mut self, at: usize, len: usize) -> bool {
        let bytes = |of: &Vec<Box<[u8]>>| of.first().map_or(0, |buffer| buffer.len() * of.len());
        while self.bytes + len > SPARE {
            let others = self.spare.iter_mut().enumerate().filter(|(other, _)| *other != at);
            let most = others.map(|(_, of)| of).max_by_key(|of| bytes(of));
            let Some(freed) = most.and_then(Vec::pop) else { return false };
            self.bytes -= freed.len();
        }
        true
    }

    /// Keeps the bytes that `read` puts into a buffer of that many.
    pub(crate) fn keep(&mut self, len: usize, read: impl FnOnce(&mut [u8])) -> Payload {
        if len <= SHORT {
            let mut short = [0; SHORT];
            read(&mut short[..len]);
            return Payload::Short(short);
        }
        let mut buffer = self.take(len);
        read(&mut buffer[..len]);
        Payload::Long(buffer)
    }

    /// A payload is not needed any more.
    pub(crate) fn drop(&mut self, payload: Payload) {
        if let Payload::Long(buffer) = payload {
            self.give_back(buffer);
        }
    }
}

fn blank(len: usize) -> Box<[u8]> {
    vec![0; len].into_boxed_slice()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_by_payloads_of_its_size() {
        let mut buffers = Buffers::default();
        for (len, size) in [
            (0, 128),
            (128, 128),
            (129, 160),
            (8192, 8192),
            (8193, 10240),
            (12289, 14336),
            (57345, 65536),
            (65536, 65536),
            (65537, 65537),
        ] {
            let buffer = buffers.take(len);
            let at = buffer.as_ptr();
            assert_eq!(buffer.len(), size, "{len}");
            buffers.give_back(buffer);
            let kept = buffers.spare.iter().flatten().any(|b| b.as_ptr() == at);
            assert_eq!(kept, len <= 65536, "{len}");
        }
    }

    #[test]
    fn little_of_a_buffer_is_not_used() {
        let mut sizes: Vec<(usize, usize)> = (0..=65536).map(|len| Buffers::size_of(len).unwrap()).collect();
        for (len, (_, size)) in sizes.iter().enumerate().skip(LEAST) {
            assert!((len..=len * 5 / 4).contains(size), "{size} for {len}");
        }
        // Each size has a number of its own, and is enough for itself.
        sizes.dedup();
        assert!(sizes.iter().map(|(at, _)| *at).eq(0..SIZES), "{sizes:?}");
        assert!(sizes.iter().all(|&(at, size)| Buffers::size_of(size) == Some((at, size))));
        assert_eq!(Buffers::size_of(65537), None);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut buffers = Buffers::default();
        let taken: Vec<_> = (0..100).map(|_| buffers.take(16384)).collect();
        taken.into_iter().for_each(|b| buffers.give_back(b));
        assert_eq!((buffers.bytes, buffers.spare[28].len()), (SPARE, SPARE / 16384));
        let again: Vec<_> = (0..100).map(|_| buffers.take(16384)).collect();
        assert_eq!((buffers.bytes, again.len()), (0, 100));
    }

    #[test]
    fn buffers_of_another_size_give_way() {
        let mut buffers = Buffers::default();
        let fill = |buffers: &mut Buffers, n: usize, len: usize| {
            let taken: Vec<_> = (0..n).map(|_| buffers.take(len)).collect();
            taken.into_iter().for_each(|b| buffers.give_back(b));
        };
        fill(&mut buffers, SPARE / 8192, 8192);
        fill(&mut buffers, 3, 128);
        assert_eq!(buffers.spare[0].len(), 3);
        fill(&mut buffers, 2, 65536);
        assert_eq!((buffers.spare[36].len(), buffers.spare[0].len()), (2, 3));
        assert!(buffers.bytes <= SPARE && buffers.bytes > SPARE - 8192);
        let kept: usize = buffers.spare.iter().flatten().map(|b| b.len()).sum();
        assert_eq!(buffers.bytes, kept);
    }

    #[test]
    fn a_payload_is_what_was_read() {
        let mut buffers = Buffers::default();
        for len in [0, 1, SHORT, SHORT + 1, 1000] {
            let payload = buffers.keep(len, |bytes| bytes.fill(7));
            assert_eq!(payload.bytes(len), vec![7; len]);
            assert_eq!(matches!(payload, Payload::Short(_)), len <= SHORT);
            buffers.drop(payload);
        }
    }
}
