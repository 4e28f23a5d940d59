//! What a program has a pointer to beside pipes. What a pointer leads to is never freed, so that one of what
//! is closed is an error.

use std::collections::VecDeque;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use ipc::fence::Barrier;

use super::handles::here;
use crate::Error;
use crate::lock::{Biased, Guard};

pub(super) type Place<T> = Biased<Option<T>>;

/// All places, and those of them that are empty, the longest empty first.
type Places<T> = (Vec<&'static Place<T>>, VecDeque<&'static Place<T>>);

/// So many of what was closed last have places that are not used again: a second close, by mistake, closes
/// nothing else.
pub(super) const CLOSED: usize = 64;

/// What there is of one kind.
pub(super) struct Kept<T: 'static> {
    places: Mutex<Places<T>>,
    /// What is wrong with a pointer that leads to nothing.
    none: &'static str,
}

impl<T: Send> Kept<T> {
    pub(super) const fn new(none: &'static str) -> Kept<T> {
        Kept { places: Mutex::new((Vec::new(), VecDeque::new())), none }
    }

    fn none(&self) -> Error {
        Error::Invalid(self.none.into())
    }

    /// Keeps a value; the pointer for the program.
    pub(super) fn keep(&self, value: T, barrier: Barrier) -> Result<*mut Place<T>, Error> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, empty) = &mut *places;
        let used = if empty.len() > CLOSED { empty.pop_front() } else { None };
        let place = used.unwrap_or_else(|| {
            let place = &*Box::leak(Box::new(Biased::new(None, barrier)));
            all.push(place);
            place
        });
        match place.lock() {
            Ok(mut inside) => *inside = Some(value),
            Err(e) => {
                empty.push_back(place);
                return Err(e);
            }
        }
        Ok(ptr::from_ref(place).cast_mut())
    }

    /// Enters; `None` inside is an error of [`Kept::inside`].
    fn enter(&self, at: *mut Place<T>) -> Result<(Guard<'static, Option<T>>, &'static Place<T>), Error> {
        here()?;
        // SAFETY: NULL, or from `keep` (the program's promise); what that gives is never freed.
        let place = unsafe { at.as_ref() }.ok_or_else(|| self.none())?;
        Ok((place.lock()?, place))
    }

    /// Does something with a value.
    pub(super) fn with<R>(
        &self,
        at: *mut Place<T>,
        body: impl FnOnce(&mut T) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let (mut inside, _) = self.enter(at)?;
        body(inside.as_mut().ok_or_else(|| self.none())?)
    }

    /// Takes a value out.
    pub(super) fn take(&self, at: *mut Place<T>) -> Result<T, Error> {
        let (mut inside, place) = self.enter(at)?;
        let value = inside.take().ok_or_else(|| self.none())?;
        drop(inside);
        self.places.lock().unwrap_or_else(PoisonError::into_inner).1.push_back(place);
        Ok(value)
    }

    /// Takes all values out that no thread is in.
    pub(super) fn take_all(&self) -> Vec<T> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, empty) = &mut *places;
        let mut values = Vec::new();
        for place in all {
            if let Some(value) = place.try_lock().and_then(|mut inside| inside.take()) {
                empty.push_back(place);
                values.push(value);
            }
        }
        values
    }
}
