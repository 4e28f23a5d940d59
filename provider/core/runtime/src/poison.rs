//! Panics inside a domain.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::Error;

/// The payload of the unwinding that a call on a poisoned domain ends with: the panic has been logged
/// before.
#[derive(Debug)]
pub struct Poisoned;

/// Runs a call. A panic inside becomes an error; so does a domain that was poisoned before.
#[inline]
pub fn catch<T>(body: impl FnOnce() -> T) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(body)).map_err(caught)
}

/// What `catch_unwind` caught, as an error; logged unless that was done before. It does not panic.
#[cold]
pub fn caught(payload: Box<dyn Any + Send>) -> Error {
    // Neither the log nor dropping the payload may unwind any further.
    let logged = catch_unwind(AssertUnwindSafe(move || {
        if payload.is::<Poisoned>() {
            return;
        }
        let text = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        log::error!("strait failed inside ({text}); the domain it was in cannot be used any more");
    }));
    if let Err(again) = logged {
        std::mem::forget(again);
    }
    Error::Poisoned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_even_if_its_payload_panics() {
        struct Twice;
        impl Drop for Twice {
            fn drop(&mut self) {
                std::panic::resume_unwind(Box::new("dropped"));
            }
        }
        assert_eq!(catch(|| 7), Ok(7));
        assert_eq!(catch(|| std::panic::resume_unwind(Box::new("a text"))), Err::<(), _>(Error::Poisoned));
        assert_eq!(catch(|| std::panic::resume_unwind(Box::new(Poisoned))), Err::<(), _>(Error::Poisoned));
        assert_eq!(catch(|| std::panic::resume_unwind(Box::new(Twice))), Err::<(), _>(Error::Poisoned));
    }
}
