//! How numbers are spread in a map that no peer chooses: by one product.

use std::hash::{BuildHasherDefault, Hasher};

/// For maps whose keys are numbers that this process, or its device, has given.
pub(super) type ByProduct = BuildHasherDefault<Product>;

/// The product so far.
#[derive(Debug, Default)]
pub(super) struct Product(u64);

impl Hasher for Product {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    #[inline]
    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }

    #[inline]
    fn write_u64(&mut self, n: u64) {
        // Odd, and close to 2 to the power of 64 by the golden ratio. A map takes bits from both ends.
        let product = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 32;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::BuildHasher as _;

    use super::*;

    #[test]
    fn numbers_in_a_row_differ_in_the_bits_that_a_map_takes() {
        let hash = |n: u64| ByProduct::default().hash_one(n);
        for step in [1, 2, 8, 64, 128, 192, 1 << 10, 1 << 12, 1 << 14, 1 << 32] {
            let low: HashSet<u64> = (0..1024).map(|n| hash(n * step) & 0x3ff).collect();
            let high: HashSet<u64> = (0..1024).map(|n| hash(n * step) >> 57).collect();
            assert!(low.len() > 512 && high.len() == 128, "{step}: {} and {}", low.len(), high.len());
        }
    }
}
