//! Links between processes: ends by SIGKILL, other users, memory of another process.
//!
//! A child is this very program, started anew with a role.
#![cfg(not(loom))]

mod common;
mod ends;
mod executed;
mod memory;
mod shortage;
mod users;

use link_api::Link as _;
use wire::Addr;

/// Not a test: what a child does.
#[test]
fn child() {
    let Ok(role) = std::env::var("STRAIT_ROLE") else { return };
    let parent = Addr::new(std::env::var("STRAIT_ADDR").unwrap().parse().unwrap());
    let mut link = common::open();
    let to = link.peer(&parent);
    let role = match role.as_str() {
        "echo" => ends::echo,
        "fork" => ends::fork,
        "fork unmet" => ends::fork_unmet,
        "last words" => ends::last_words,
        "without its first thread" => ends::without_its_first_thread,
        "slow" => executed::slow,
        "memory" => memory::memory,
        "before exec" => memory::before_exec,
        "after exec" => memory::after_exec,
        "inside" => memory::inside,
        "killed inside" => memory::killed_inside,
        "short of memory" => shortage::short_of_memory,
        "short of descriptors" => shortage::short_of_descriptors,
        "short before a full queue" => shortage::short_before_a_full_queue,
        "foreign" => users::foreign,
        "owner" => users::owner,
        "kin" => users::kin,
        "refused" => users::refused,
        "hidden" => users::hidden,
        other => panic!("no role {other}"),
    };
    role(link, to, parent);
}
