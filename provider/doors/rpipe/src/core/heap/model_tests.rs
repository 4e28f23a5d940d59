//! The heap beside a plain one: a list of blocks that is searched from end to end.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    Alloc { len: usize, align: usize },
    Free(usize),
    Send(usize),
    FreeRun { at: usize, blocks: usize },
    Lie { at: u32, len: u32 },
    Policy(Policy),
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Plain {
    at: u32,
    len: u32,
    /// `None`: free.
    block: Option<(Block, usize, State)>,
}

#[derive(Debug)]
struct Model {
    blocks: Vec<Plain>,
    policy: Policy,
    rover: u32,
    total: u32,
}

const GRANULE: usize = 16;

impl Model {
    fn join(&mut self) {
        let mut joined: Vec<Plain> = Vec::new();
        for block in self.blocks.drain(..) {
            match joined.last_mut() {
                Some(last) if last.block.is_none() && block.block.is_none() => last.len += block.len,
                _ => joined.push(block),
            }
        }
        self.blocks = joined;
        for free in self.blocks.iter().filter(|b| b.block.is_none()) {
            if self.rover > free.at && self.rover < free.at + free.len {
                self.rover = free.at;
            }
        }
    }

    /// Where it has to be, by the words of the policy.
    fn place(&self, want: u32, align: u32) -> Option<u32> {
        let fits: Vec<(u32, u32, u32)> = self
            .blocks
            .iter()
            .filter(|b| b.block.is_none())
            .map(|b| (b.at, b.len, b.at.div_ceil(align) * align))
            .filter(|(at, len, begin)| begin + want <= at + len)
            .collect();
        let rover = self.rover;
        match self.policy {
            Policy::FirstFit => fits.first(),
            Policy::NextFit => fits.iter().find(|(at, ..)| *at >= rover).or(fits.first()),
            Policy::BestFit => fits.iter().min_by_key(|(at, len, _)| (*len, *at)),
            Policy::WorstFit => fits.iter().max_by_key(|(at, len, _)| (*len, *at)),
        }
        .map(|(.., begin)| *begin)
    }

    fn alloc(&mut self, at: u32, want: u32, block: Block, len: usize) {
        let hole = self.blocks.iter().position(|b| b.at <= at && at + want <= b.at + b.len).unwrap();
        let Plain { at: begin, len: all, block: used } = self.blocks.remove(hole);
        assert!(used.is_none(), "granule {at} is in use");
        let parts = [
            Plain { at: begin, len: at - begin, block: None },
            Plain { at, len: want, block: Some((block, len, State::Held)) },
            Plain { at: at + want, len: begin + all - at - want, block: None },
        ];
        self.blocks.splice(hole..hole, parts.into_iter().filter(|p| p.len > 0));
        self.rover = if at + want == self.total { 0 } else { at + want };
    }

    fn used(&self, nth: usize) -> Option<usize> {
        let used: Vec<usize> = (0..self.blocks.len()).filter(|i| self.blocks[*i].block.is_some()).collect();
        (!used.is_empty()).then(|| used[nth % used.len()])
    }

    fn check(&self, heap: &Heap) {
        for b in &self.blocks {
            if let Some((block, len, state)) = b.block {
                assert_eq!(heap.find(block).unwrap(), (state, len));
                let other = Block { generation: block.generation.wrapping_sub(1), ..block };
                assert!(heap.find(other).is_err());
            }
        }
        let free =
            || self.blocks.iter().filter(|b| b.block.is_none()).map(|b| u64::from(b.len) * GRANULE as u64);
        let usage = heap.usage();
        let (all, largest) = (free().sum::<u64>(), free().max().unwrap_or(0));
        assert_eq!((usage.free, usage.largest, usage.holes), (all, largest, free().count() as u64));
        assert_eq!(usage.used + usage.free, u64::from(self.total) * GRANULE as u64);
    }
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0usize..300, 0u32..8).prop_map(|(len, align)| Step::Alloc { len, align: 1 << align }),
        // So long that a heap of many groups becomes full.
        3 => (0usize..12_000, 0u32..13).prop_map(|(len, align)| Step::Alloc { len, align: 1 << align }),
        2 => any::<usize>().prop_map(Step::Free),
        4 => any::<usize>().prop_map(Step::Send),
        3 => (any::<usize>(), 1usize..4).prop_map(|(at, blocks)| Step::FreeRun { at, blocks }),
        1 => (0u32..70, 0u32..70).prop_map(|(at, len)| Step::Lie { at, len }),
        1 => (0usize..4).prop_map(|n| Step::Policy(Policy::ALL[n])),
    ]
}

fn run(step: Step, heap: &mut Heap, model: &mut Model, dead: &mut Vec<Block>) {
    match step {
        Step::Alloc { len, align } => {
            let want = (len.max(1)).div_ceil(GRANULE) as u32;
            let place = model.place(want, (align / GRANULE).max(1) as u32);
            let got = heap.alloc(len, align);
            assert_eq!(got.map(|b| b.granule), place, "{len} bytes, align {align}");
            if let Some(block) = got {
                assert_eq!(heap.offset(block.granule) % align.max(GRANULE), 0);
                model.alloc(block.granule, want, block, len);
            }
        }
        Step::Free(nth) | Step::Send(nth) => {
            let Some(at) = model.used(nth) else { return };
            let Some((block, len, state)) = model.blocks[at].block else { return };
            let is_free = matches!(step, Step::Free(_));
            let ended =
                if is_free { heap.free(block).map(|()| len) } else { heap.send(block).map(|(len, _)| len) };
            match state {
                State::Held => assert_eq!(ended, Ok(len)),
                _ => assert!(matches!(ended, Err(Error::Stale(_)))),
            }
            if state == State::Held {
                model.blocks[at].block = (!is_free).then_some((block, len, State::Sent));
                dead.extend(is_free.then_some(block));
                model.join();
            }
        }
        Step::FreeRun { at, blocks } => {
            let Some(first) = model.used(at) else { return };
            let run = &model.blocks[first..(first + blocks).min(model.blocks.len())];
            let (from, len) = (run[0].at, run.iter().map(|b| b.len).sum());
            let all_sent = run.iter().all(|b| matches!(b.block, Some((_, _, State::Sent))));
            assert_eq!(heap.free_run(from, len).ok(), all_sent.then_some(run.len()));
            if all_sent {
                dead.extend(run.iter().filter_map(|b| b.block).map(|b| b.0));
                let n = run.len();
                model.blocks[first..first + n].iter_mut().for_each(|b| b.block = None);
                model.join();
            }
        }
        Step::Lie { at, len } => {
            let exact = model.blocks.iter().any(|b| b.at == at) && len > 0;
            if !exact {
                assert!(matches!(heap.free_run(at, len), Err(Error::Broken(_))));
            }
        }
        Step::Policy(policy) => {
            heap.set_policy(policy).unwrap();
            model.policy = policy;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn every_step_ends_as_in_a_plain_heap(
        steps in prop::collection::vec(step(), 1..120),
        granules in prop_oneof![1u32..64, 64u32..6000, Just(64 * 16), Just(64 * 16 * 16 + 1)],
    ) {
        let mut heap = Heap::new(granules as usize * GRANULE, GRANULE, Policy::NextFit).unwrap();
        let all = Plain { at: 0, len: granules, block: None };
        let mut model = Model { blocks: vec![all], policy: Policy::NextFit, rover: 0, total: granules };
        let mut dead = Vec::new();
        for step in steps {
            run(step, &mut heap, &mut model, &mut dead);
            model.check(&heap);
            for block in &dead {
                let stale = matches!(heap.find(*block), Err(Error::Stale(_)));
                prop_assert!(stale, "freed, and found again: {:?}", block);
            }
        }
    }
}

#[test]
fn a_heap_is_exhausted_and_becomes_whole_again() {
    for policy in Policy::ALL {
        let mut heap = Heap::new(1 << 16, 64, policy).unwrap();
        let blocks: Vec<Block> = std::iter::from_fn(|| heap.alloc(64, 1)).collect();
        assert_eq!((blocks.len(), heap.usage().free), (1024, 0));
        // Every other one: half of it is free, and nothing longer than one fits.
        for block in blocks.iter().step_by(2) {
            heap.free(*block).unwrap();
        }
        let usage = heap.usage();
        assert_eq!((usage.free, usage.largest, usage.holes), (1 << 15, 64, 512));
        assert!(usage.fragmentation > 0.99);
        assert_eq!(heap.alloc(65, 1), None);
        for block in blocks.iter().skip(1).step_by(2) {
            heap.send(*block).unwrap();
            assert!(heap.free(*block).is_err(), "it is the reader's");
            heap.free_run(block.granule, 1).unwrap();
            assert!(heap.free_run(block.granule, 1).is_err(), "twice");
        }
        assert_eq!(heap.usage().holes, 1);
        assert!(heap.alloc(1 << 16, 1).is_some());
        assert_eq!(heap.alloc(usize::MAX, 1), None);
        assert_eq!(heap.alloc((1 << 16) + 1, 1), None);
    }
    assert!(Heap::new(100, 64, Policy::NextFit).is_err() && Heap::new(64, 48, Policy::NextFit).is_err());
}

#[test]
fn next_fit_goes_on_with_the_free_block_that_the_last_allocation_s_end_became_part_of() {
    let mut heap = Heap::new(5 * GRANULE, GRANULE, Policy::NextFit).unwrap();
    let [first, _, third, fourth] = [(); 4].map(|()| heap.alloc(GRANULE, 1).unwrap());
    heap.set_policy(Policy::FirstFit).unwrap();
    // The last is joined with the third, before it, and with the heap's end, where next-fit was to go on.
    [third, first, fourth].iter().for_each(|block| heap.free(*block).unwrap());
    heap.set_policy(Policy::NextFit).unwrap();
    assert_eq!(heap.alloc(GRANULE, 1).map(|block| block.granule), Some(2));
}

#[test]
fn policies_have_names() {
    for policy in Policy::ALL {
        assert_eq!(policy.to_string().parse::<Policy>(), Ok(policy));
    }
    assert_eq!("best".parse::<Policy>(), Ok(Policy::BestFit));
    assert!("better".parse::<Policy>().unwrap_err().to_string().contains("worst-fit"));
}
