//! What is made once for each context.

use std::sync::{Mutex, PoisonError};

/// Values by context.
#[derive(Debug)]
pub struct PerContext<T>(Mutex<Vec<(usize, u64, T)>>);

impl<T: Copy> PerContext<T> {
    /// None yet.
    pub const fn new() -> PerContext<T> {
        PerContext(Mutex::new(Vec::new()))
    }

    /// That of the context with this handle and number ([`super::Stream::context_id`]), which is made at the
    /// first call. Without a number a context cannot be known from an earlier one of the same handle: it is
    /// made again then.
    pub fn get<E>(&self, (ctx, id): (usize, u64), make: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((.., found)) = all.iter().find(|one| id != 0 && (one.0, one.1) == (ctx, id)) {
            return Ok(*found);
        }
        let made = make()?;
        all.retain(|one| one.0 != ctx);
        all.push((ctx, id, made));
        Ok(made)
    }
}

impl<T: Copy> Default for PerContext<T> {
    fn default() -> PerContext<T> {
        PerContext::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_of_the_same_handle_with_another_number_is_another_one() {
        let all = PerContext::new();
        let get = |context, value: u8| all.get(context, || Ok::<_, ()>(value));
        assert_eq!([get((1, 7), 10), get((1, 7), 11), get((2, 7), 12)], [Ok(10), Ok(10), Ok(12)]);
        assert_eq!([get((1, 8), 13), get((1, 7), 14)], [Ok(13), Ok(14)]);
        assert_eq!([get((3, 0), 15), get((3, 0), 16)], [Ok(15), Ok(16)]);
        assert_eq!(all.get((4, 1), || Err(5)), Err(5));
        assert_eq!(get((4, 1), 17), Ok(17));
    }
}
