//! Calls for large counts under an MPI that has none (Open MPI 4 and 5): the call with counts of `int`, where
//! they fit.

use core::ffi::c_int;
use std::collections::BTreeMap;

use crate::args::{Args, Style};
use crate::buffer::Resolver;
use crate::library::{UNAVAILABLE, library};
use crate::row::{Count, On, Peers, Places, Row, Whose};
use crate::words;

/// A count does not fit.
#[derive(Debug)]
pub(crate) struct TooLarge;

/// Arrays that the MPI may read until the operation completes.
#[derive(Debug, Default)]
pub(crate) struct Arrays(BTreeMap<usize, Vec<c_int>>);

impl Arrays {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    unsafe fn add(&mut self, args: &Args<'_>, at: u8, len: usize) -> Result<(), TooLarge> {
        let at = usize::from(at);
        if args.words[at] == 0 || self.0.contains_key(&at) {
            return Ok(());
        }
        // SAFETY: an array of that many.
        let number = |n| c_int::try_from(unsafe { args.number_at(at, n, true) }).map_err(|_| TooLarge);
        let mut all = (0..len).map(number).collect::<Result<Vec<_>, _>>()?;
        // An array of no element has an address too.
        all.push(0);
        self.0.insert(at, all);
        Ok(())
    }
}

fn fits(args: &Args<'_>, at: u8) -> Result<(), TooLarge> {
    c_int::try_from(args.words[usize::from(at)] as i64).map(|_| ()).map_err(|_| TooLarge)
}

/// The arrays of a call, with counts that fit.
unsafe fn arrays(row: &Row, args: &Args<'_>) -> Result<Arrays, TooLarge> {
    let mut arrays = Arrays::default();
    let mut resolver = Resolver::new(args, row.on);
    for buf in row.bufs {
        // SAFETY: the caller's promise; so below.
        unsafe {
            if buf.whose == Whose::Root && !resolver.is_root() {
                continue;
            }
            let len = |resolver: &mut Resolver<'_>, peers| resolver.peers(peers).map_err(|_| TooLarge);
            match buf.count {
                Count::One(at) | Count::Times(at, _) | Count::OwnOrTimes(at) => fits(args, at)?,
                Count::Sum(at) | Count::OwnOrSum(at) => {
                    arrays.add(args, at, len(&mut resolver, Peers::Local)?)?;
                }
                Count::Each(at, places, peers) => {
                    let len = len(&mut resolver, peers)?;
                    arrays.add(args, at, len)?;
                    if let Places::Extents(at) | Places::Bytes(at) = places {
                        arrays.add(args, at, len)?;
                    }
                }
                Count::Single | Count::Bytes(_) | Count::Partitions(..) => {}
            }
        }
    }
    // The target's count is two arguments behind its rank.
    if let On::Window(_, rank) = row.on {
        fits(args, rank + 2)?;
    }
    Ok(arrays)
}

/// The argument of MPI_Pack and MPI_Unpack that is read and written: a place of MPI_Count, or of int.
fn position(name: &str) -> Option<usize> {
    match name {
        "MPI_Pack" => Some(5),
        "MPI_Unpack" => Some(2),
        _ => None,
    }
}

/// Does the call; what it answered, and the arrays that it got.
///
/// # Safety
/// The arguments are those of the row's call for large counts.
pub(crate) unsafe fn call(row: &Row, args: &mut Args<'_>) -> Result<(c_int, Arrays), TooLarge> {
    debug_assert_eq!(args.style, Style::Large);
    // SAFETY: the caller's promise; so below.
    let arrays = unsafe { arrays(row, args) }?;
    let Some(function) = library().and_then(|library| library.function(row.name)) else {
        return Ok((UNAVAILABLE, Arrays::default()));
    };
    for (at, array) in &arrays.0 {
        args.words[*at] = array.as_ptr() as usize;
    }
    let mut short: c_int = 0;
    let place = position(row.name).map(|at| (at, args.words[at] as *mut i64));
    // SAFETY: a place of MPI_Count.
    unsafe {
        if let Some((at, place)) = place {
            short = c_int::try_from(place.read()).map_err(|_| TooLarge)?;
            args.words[at] = (&raw mut short) as usize;
        }
        let returned = words::call(function, args.words);
        if let Some((_, place)) = place {
            place.write(i64::from(short));
        }
        Ok((returned, arrays))
    }
}
