//! Peers that have the job's key and say what they like: every byte of the handshake, of records and their
//! headers, of frames, notes of rails and verdicts is drawn from bytes, and each ends anywhere. The tags are
//! right, mostly, so that what is behind them is reached. An honest peer is served all the time, nothing
//! hangs, and no connection takes much memory.
//!
//! Plain `cargo test` runs some random ones, `BOLERO_RANDOM_TEST_TIME_MS` has it run longer, and `cargo
//! bolero test -p strait-link callers` searches for more.
#![cfg(not(loom))]

mod draw;
mod heap;
mod stage;
mod talk;

use std::cell::RefCell;
use std::net::TcpListener;
use std::sync::atomic::Ordering::Relaxed;

use bolero::generator::produce;
use wire::Addr;
use wire::session::{Answerer, Caller, Hello, MAC, Next, Role, VERDICT, Verdict};

use draw::Draw;
use stage::{Stage, key, pull, push, say};
use talk::{REACHED, Side, Talk, connect, hang_up};

/// After so many attacks the victim is another one.
const ATTACKS: u32 = 200;
/// No connection makes the heap grow by more than that.
const MOST: usize = 48 << 20;

thread_local! {
    static STAGE: RefCell<Option<(Stage, u32)>> = const { RefCell::new(None) };
}

/// One attack, and what has to hold then.
fn with_stage(attack: impl FnOnce(&mut Stage, u32)) {
    // One at which an attack failed is not used again.
    let (mut stage, n) = STAGE.take().unwrap_or_else(|| (Stage::new(), 0));
    REACHED[0].fetch_add(1, Relaxed);
    let before = heap::begin();
    attack(&mut stage, n);
    let grown = heap::most().saturating_sub(before);
    assert!(grown < MOST, "{grown} bytes for one connection");
    stage.greet();
    if n < ATTACKS {
        STAGE.set(Some((stage, n + 1)));
    } else {
        stage.settle();
    }
}

/// The door at which a hostile peer can be called, and its name.
fn door() -> (TcpListener, Addr) {
    let door = TcpListener::bind("127.0.0.1:0").expect("a free name");
    door.set_nonblocking(true).unwrap();
    let name = Addr::new(door.local_addr().unwrap());
    (door, name)
}

fn hello(draw: &mut Draw<'_>, stage: &Stage, n: u32, own: Addr) -> Hello {
    let all = [own, stage.victim.addr, stage.honest_name()];
    // A name that is not the own one is said now and then.
    let name = if draw.below(6) == 0 { draw.name(&all) } else { own };
    let other = if draw.below(12) == 0 { draw.name(&all) } else { stage.victim.addr };
    let instance = draw.word(&[n.into()]);
    Hello { role: Role::Caller, instance, name, other, nonce: [draw.byte(); 32] }
}

fn call(stage: &mut Stage, draw: &mut Draw<'_>, n: u32) {
    let (_door, own) = door();
    let foe = stage.victim.insert(own);
    let own = hello(draw, stage, n, own);
    let Some(mut stream) = connect(stage.victim.addr) else { return };
    let bytes = draw.spoil(&own.encode());
    push(stage, &mut stream, &bytes);
    let said = bytes.first_chunk().map(Hello::decode);
    let mut caller = match said {
        Some(Ok(Hello { role: Role::Rail(number), .. })) => Caller::of_rail(&key(), number, own),
        Some(Ok(said)) => Caller::new(&key(), said),
        _ => return hang_up(stage, draw, stream),
    };
    let answer = pull(stage, &mut stream, Hello::LEN + MAC);
    let Some(Ok(Next::Say(proof))) = answer.map(|answer| caller.hear(&answer)) else {
        return hang_up(stage, draw, stream);
    };
    let goes_on = say(stage, &mut stream, draw, &proof);
    let verdict = goes_on.then(|| pull(stage, &mut stream, VERDICT)).flatten();
    let Some(Ok(Next::Connected(_, keys))) = verdict.map(|verdict| caller.hear(&verdict)) else {
        return hang_up(stage, draw, stream);
    };
    if caller.confirmation().is_some_and(|confirmation| !say(stage, &mut stream, draw, &confirmation)) {
        return hang_up(stage, draw, stream);
    }
    Talk { stream, keys, own, foe, side: Side::Caller }.run(stage, draw);
}

fn answer(stage: &mut Stage, draw: &mut Draw<'_>, n: u32) {
    let (door, own) = door();
    if !stage.is_new(own) {
        return;
    }
    let foe = stage.victim.insert(own);
    let own = Hello { role: Role::Answerer, ..hello(draw, stage, n, own) };
    if !stage.calls(foe) {
        return;
    }
    let mut stream = None;
    stage.until("a call", |_| {
        stream = door.accept().ok();
        stream.is_some()
    });
    let Some((mut stream, _)) = stream else { return };
    stream.set_nonblocking(true).unwrap();
    let Some(asked) = pull(stage, &mut stream, Hello::LEN) else { return };
    let mut answerer = Answerer::new(&key(), own);
    let said = answerer.hear_hello(&asked).expect("a hello of the victim");
    let goes_on = say(stage, &mut stream, draw, &said);
    let proof = goes_on.then(|| pull(stage, &mut stream, MAC)).flatten();
    let Some(Ok(proven)) = proof.map(|proof| answerer.hear_proof(&proof)) else {
        return hang_up(stage, draw, stream);
    };
    let verdict = draw.verdict();
    if !say(stage, &mut stream, draw, &proven.verdict(verdict)) || verdict != Verdict::Accepted {
        return hang_up(stage, draw, stream);
    }
    let Some(confirmation) = pull(stage, &mut stream, MAC) else { return };
    assert!(proven.is_confirmation(&confirmation), "the victim confirms what it has accepted");
    let keys = proven.keys();
    Talk { stream, keys, own, foe, side: Side::Answerer(door) }.run(stage, draw);
}

/// What is behind the handshake was reached: connections, steps on them, and rails.
fn has_reached() {
    let [attacks, connections, steps, rails] = REACHED.each_ref().map(|n| n.load(Relaxed));
    println!("{attacks} attacks, {connections} connections, {steps} steps, {rails} rails");
    assert!(4 * connections >= attacks && steps >= 2 * connections, "{connections}, {steps} of {attacks}");
    assert!(rails > 0 || attacks < 100, "no rails");
}

#[test]
fn callers() {
    let script = produce::<Vec<u8>>().with().len(100..2_000usize);
    bolero::check!().with_iterations(300).with_max_len(3_000).with_generator(script).for_each(
        |bytes: &Vec<u8>| {
            with_stage(|stage, n| call(stage, &mut Draw(bytes), n));
        },
    );
    has_reached();
}

#[test]
fn answerers() {
    let script = produce::<Vec<u8>>().with().len(100..2_000usize);
    bolero::check!().with_iterations(300).with_max_len(3_000).with_generator(script).for_each(
        |bytes: &Vec<u8>| {
            with_stage(|stage, n| answer(stage, &mut Draw(bytes), n));
        },
    );
    has_reached();
}
