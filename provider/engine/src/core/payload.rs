//! Bytes of messages that wait.

/// Payloads of up to so many bytes wait in the place of their message.
pub(crate) const SHORT: usize = 40;

/// Sizes of buffers for longer ones: this, and each twice the one before. Longer ones than the last are of their own size.
const LEAST: usize = 128;
const SIZES: usize = 10;
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

    /// Likewise, for them to be put there.
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
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// By size.
    spare: [Vec<Box<[u8]>>; SIZES],
    bytes: usize,
}

impl Buffers {
    /// The size that is enough for `len` bytes, if buffers of that size are kept.
    fn size_of(len: usize) -> Option<usize> {
        let at = len.div_ceil(LEAST).next_power_of_two().trailing_zeros() as usize;
        (at < SIZES).then_some(at)
    }

    /// One of at least `len` bytes, with anything in it.
    pub(crate) fn take(&mut self, len: usize) -> Box<[u8]> {
        let Some(at) = Self::size_of(len) else { return blank(len) };
        match self.spare[at].pop() {
            Some(buffer) => {
                self.bytes -= buffer.len();
                buffer
            }
            None => blank(LEAST << at),
        }
    }

    /// Takes one back.
    pub(crate) fn give_back(&mut self, buffer: Box<[u8]>) {
        let len = buffer.len();
        let Some(at) = Self::size_of(len).filter(|at| len == LEAST << at) else { return };
        if self.bytes + len <= SPARE || self.make_room(at) {
            self.bytes += len;
            self.spare[at].push(buffer);
        }
    }

    /// Frees buffers of other sizes for one more of this: messages have been of another length before.
    #[cold]
    fn make_room(&mut self, at: usize) -> bool {
        while self.bytes + (LEAST << at) > SPARE {
            let others = (0..SIZES).filter(|other| *other != at);
            let Some(most) = others.max_by_key(|other| self.spare[*other].len() << other) else {
                return false;
            };
            if self.spare[most].pop().is_none() {
                return false;
            }
            self.bytes -= LEAST << most;
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
        for (len, size) in
            [(0, 128), (128, 128), (129, 256), (8192, 8192), (8193, 16384), (65536, 65536), (65537, 65537)]
        {
            let buffer = buffers.take(len);
            let at = buffer.as_ptr();
            assert_eq!(buffer.len(), size, "{len}");
            buffers.give_back(buffer);
            let kept = buffers.spare.iter().flatten().any(|b| b.as_ptr() == at);
            assert_eq!(kept, len <= 65536, "{len}");
        }
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut buffers = Buffers::default();
        let taken: Vec<_> = (0..100).map(|_| buffers.take(16384)).collect();
        taken.into_iter().for_each(|b| buffers.give_back(b));
        assert_eq!((buffers.bytes, buffers.spare[7].len()), (SPARE, SPARE / 16384));
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
        assert_eq!((buffers.spare[9].len(), buffers.spare[0].len()), (2, 3));
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
