//! How a datatype was made: MPI_Type_get_envelope and MPI_Type_get_contents, or their forms for large counts.

use core::ffi::c_int;

use crate::abi::{Abi, Combiners, Handle};
use crate::library::{Function, pmpi};

/// What a constructor was called with.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) combiner: c_int,
    pub(super) integers: Vec<i64>,
    pub(super) addresses: Vec<i64>,
    pub(super) types: Vec<Handle>,
}

impl Contents {
    /// Of a datatype; no integers and no types where it is predefined.
    ///
    /// # Safety
    /// `datatype` is a valid one.
    pub(super) unsafe fn of(abi: &Abi, datatype: Handle) -> Result<Contents, c_int> {
        static LARGE: Function = Function::new(c"PMPI_Type_get_envelope_c");
        // SAFETY: the caller's promise.
        let contents =
            unsafe { if LARGE.address().is_some() { large(abi, datatype) } else { small(abi, datatype) } }?;
        Ok(contents)
    }
}

/// Whether the datatype was made of others: only then are there contents.
fn is_made(combiners: &Combiners, combiner: c_int) -> bool {
    let c = combiners;
    let made = [
        c.dup,
        c.contiguous,
        c.vector,
        c.hvector,
        c.indexed,
        c.hindexed,
        c.indexed_block,
        c.hindexed_block,
        c.structure,
        c.subarray,
        c.darray,
        c.resized,
    ];
    made.contains(&combiner) || c.integer.contains(&combiner)
}

unsafe fn small(abi: &Abi, datatype: Handle) -> Result<Contents, c_int> {
    let (mut ni, mut na, mut nd, mut combiner): (c_int, c_int, c_int, c_int) = (0, 0, 0, 0);
    // SAFETY: valid places; the caller's promise.
    unsafe {
        pmpi!("Type_get_envelope", datatype, &raw mut ni, &raw mut na, &raw mut nd, &raw mut combiner)
    }?;
    if !is_made(&abi.combiners, combiner) {
        return Ok(Contents { combiner, ..Contents::default() });
    }
    let mut i = vec![0 as c_int; ni as usize + 1];
    let mut a = vec![0_isize; na as usize + 1];
    let mut d = vec![0usize; nd as usize + 1];
    // SAFETY: as much room as these arguments say.
    unsafe {
        pmpi!("Type_get_contents", datatype, ni, na, nd, i.as_mut_ptr(), a.as_mut_ptr(), d.as_mut_ptr())
    }?;
    let integers = i[..ni as usize].iter().map(|n| i64::from(*n)).collect();
    let addresses = a[..na as usize].iter().map(|n| *n as i64).collect();
    Ok(Contents { combiner, integers, addresses, types: types(abi, &d, nd as usize) })
}

unsafe fn large(abi: &Abi, datatype: Handle) -> Result<Contents, c_int> {
    let (mut ni, mut na, mut nc, mut nd): (i64, i64, i64, i64) = (0, 0, 0, 0);
    let mut combiner: c_int = 0;
    // SAFETY: valid places; the caller's promise.
    unsafe {
        pmpi!(
            "Type_get_envelope_c",
            datatype,
            &raw mut ni,
            &raw mut na,
            &raw mut nc,
            &raw mut nd,
            &raw mut combiner,
        )
    }?;
    if !is_made(&abi.combiners, combiner) {
        return Ok(Contents { combiner, ..Contents::default() });
    }
    let mut i = vec![0 as c_int; ni as usize + 1];
    let mut a = vec![0_isize; na as usize + 1];
    let mut c = vec![0i64; nc as usize + 1];
    let mut d = vec![0usize; nd as usize + 1];
    // SAFETY: as much room as these arguments say.
    unsafe {
        pmpi!(
            "Type_get_contents_c",
            datatype,
            ni,
            na,
            nc,
            nd,
            i.as_mut_ptr(),
            a.as_mut_ptr(),
            c.as_mut_ptr(),
            d.as_mut_ptr(),
        )
    }?;
    let integers: Vec<i64> = i[..ni as usize].iter().map(|n| i64::from(*n)).collect();
    let addresses = a[..na as usize].iter().map(|n| *n as i64).collect();
    let mut contents = Contents { combiner, integers, addresses, types: types(abi, &d, nd as usize) };
    contents.insert_counts(&abi.combiners, &c[..nc as usize]);
    Ok(contents)
}

fn types(abi: &Abi, handles: &[usize], count: usize) -> Vec<Handle> {
    // SAFETY: the MPI has written so many.
    (0..count).map(|n| unsafe { abi.handle_at(handles.as_ptr() as usize, n) }).collect()
}

impl Contents {
    /// A constructor for large counts has its numbers elsewhere: they are put where those of the other one
    /// are.
    fn insert_counts(&mut self, combiners: &Combiners, counts: &[i64]) {
        if counts.is_empty() {
            return;
        }
        let c = combiners;
        // How many of the counts are integers of the other constructor; the rest are addresses.
        let integers = match self.combiner {
            x if x == c.hvector || x == c.hindexed_block => 2,
            x if x == c.hindexed || x == c.structure => 1 + counts[0] as usize,
            x if x == c.resized => 0,
            x if x == c.subarray => {
                let order = self.integers.split_off(1);
                self.integers.extend(counts);
                self.integers.extend(order);
                return;
            }
            x if x == c.darray => {
                let rest = self.integers.split_off(3);
                self.integers.extend(counts);
                self.integers.extend(rest);
                return;
            }
            _ => counts.len(),
        };
        let (integers, addresses) = counts.split_at(integers.min(counts.len()));
        self.integers.extend(integers);
        self.addresses.extend(addresses);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::MPICH;

    #[test]
    fn large_counts_are_where_those_of_the_other_constructor_are() {
        let c = MPICH.combiners;
        let placed = |combiner, integers: &[i64], counts: &[i64]| {
            let mut contents = Contents { combiner, integers: integers.to_vec(), ..Contents::default() };
            contents.insert_counts(&c, counts);
            (contents.integers, contents.addresses)
        };
        assert_eq!(placed(c.vector, &[], &[3, 2, 5]), (vec![3, 2, 5], vec![]));
        assert_eq!(placed(c.hvector, &[], &[3, 2, 50]), (vec![3, 2], vec![50]));
        assert_eq!(placed(c.structure, &[], &[2, 1, 1, 0, 8]), (vec![2, 1, 1], vec![0, 8]));
        assert_eq!(placed(c.hindexed_block, &[], &[2, 7, 0, 80]), (vec![2, 7], vec![0, 80]));
        assert_eq!(placed(c.resized, &[], &[-4, 16]), (vec![], vec![-4, 16]));
        assert_eq!(placed(c.subarray, &[1, 56], &[9, 3, 2]), (vec![1, 9, 3, 2, 56], vec![]));
        assert_eq!(
            placed(c.darray, &[4, 0, 1, 121, -1, 4, 56], &[99]),
            (vec![4, 0, 1, 99, 121, -1, 4, 56], vec![])
        );
        assert_eq!(placed(c.vector, &[3, 2, 5], &[]), (vec![3, 2, 5], vec![]));
    }
}
