//! Memory that is unmapped and mapped between accesses.

use super::*;

/// Pages of a process, each with a number that it has until it is unmapped: what an adapter accesses by a
/// registration are those that it has pinned, or those that are mapped when it does.
#[derive(Debug, Default)]
struct Pages {
    mapped: Vec<u64>,
    last: u64,
    /// By key: on demand the first page and how many; else the pages that it has pinned.
    keys: BTreeMap<u32, Result<(usize, usize), Vec<u64>>>,
    key: u32,
    /// On demand it pins nevertheless.
    is_broken: bool,
}

const PAGE: usize = 4096;

impl Pages {
    fn change(&mut self, page: usize) {
        self.last += 1;
        self.mapped[page] = self.last;
    }

    /// The pages that an access finds, of those from the first one of a registration on.
    fn found(&self, key: u32, skip: usize, len: usize) -> Vec<u64> {
        match &self.keys[&key] {
            Ok((first, _)) => self.mapped[first + skip..][..len].to_vec(),
            Err(pinned) => pinned[skip..][..len].to_vec(),
        }
    }
}

impl Device for Pages {
    type Key = (u32, usize);

    fn sees(&mut self, _span: Span) -> Result<AdapterWrites, (&'static str, i32)> {
        Ok(AdapterWrites::Seen)
    }

    fn flush(&mut self, _span: Span) -> Result<(), (&'static str, i32)> {
        Ok(())
    }

    fn register(&mut self, way: Way, span: Span, _uses: Uses) -> Result<(u32, usize), (&'static str, i32)> {
        let (first, len) = (span.addr() as usize / PAGE - 1, span.len() / PAGE);
        let pinned = self.mapped[first..][..len].to_vec();
        let on_demand = way == Way::OnDemand && !self.is_broken;
        self.key += 1;
        self.keys.insert(self.key, if on_demand { Ok((first, len)) } else { Err(pinned) });
        Ok((self.key, first))
    }

    fn deregister(&mut self, (key, _): (u32, usize)) -> Result<(), (&'static str, i32)> {
        self.keys.remove(&key).map(drop).ok_or(("a key", libc::EINVAL))
    }
}

/// Whether each access, among changes of what is mapped, finds what is mapped when it is posted.
fn accesses_are_right(is_broken: bool, on_demand: bool, steps: &[(u8, usize, usize)]) -> bool {
    const ALL: usize = 8;
    let mut all = Registry::new(Pages { mapped: vec![0; ALL], is_broken, ..Pages::default() }, on_demand);
    for &(what, first, len) in steps {
        let (first, len) = (first % ALL, len % 3 + 1);
        let len = len.min(ALL - first);
        if what == 0 {
            all.device().change(first);
            continue;
        }
        // SAFETY: an address that no call of this test follows.
        let span = unsafe { Span::new((first + 1) * PAGE, len * PAGE, Kind::System) };
        let uses = if what == 1 { OWN_READ } else { OWN_WRITE };
        let found = all.find(span, uses).map(|(number, key)| (number, *key));
        let (number, key) = found.unwrap_or_else(|| {
            let (number, key) = all.register(span, uses, false).expect("a way");
            (number, *key)
        });
        all.begin(number);
        if found.is_none() {
            all.let_go(number).expect("it is in use");
        }
        let pages = all.device();
        let is_right = pages.found(key.0, first - key.1, len) == pages.mapped[first..][..len];
        all.end(number).expect("an end");
        if !is_right {
            return false;
        }
    }
    true
}

proptest! {
    /// Memory is unmapped and mapped between accesses, of whatever length: none finds a page that is not there
    /// any more, whether memory is registered on demand or for each access.
    #[test]
    fn no_access_finds_pages_that_were_unmapped(
        steps in prop::collection::vec((0u8..3, 0usize..8, 0usize..3), 0..60),
    ) {
        prop_assert!(accesses_are_right(false, true, &steps));
        prop_assert!(accesses_are_right(false, false, &steps));
    }
}

/// The check above finds an adapter whose registrations stay and have pages that were unmapped.
#[test]
fn registrations_that_stay_and_pin_are_found_out() {
    assert!(accesses_are_right(true, false, &[(1, 0, 0), (0, 0, 0), (1, 0, 0)]));
    assert!(!accesses_are_right(true, true, &[(1, 0, 0), (0, 0, 0), (1, 0, 0)]));
}
