//! Maps by numbers that the program here chooses: tags, keys.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by a number that no peer chooses, so that no peer can make it slow.
pub(crate) type Map<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;

/// Programs spread their numbers already; one multiplication will do.
#[derive(Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }
    #[inline]
    fn write_u64(&mut self, v: u64) {
        let x = (self.0 ^ v).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = x ^ x >> 32;
    }
}
