//! The checks: one for each clause of the documentation of [`link_api::Link`] and [`link_api::RmaLink`].
//!
//! Each is a function that takes a [`Harness`](crate::Harness) and panics where the link does not do what it
//! has to.
//!
//! | group | for links |
//! |---|---|
//! | [`frames`], [`polls`], [`peers`] | all |
//! | [`ends`] | all |
//! | [`returns`] | to whose names other endpoints come back ([`Harness::reopen`](crate::Harness::reopen)) |
//! | [`hostile`] | into whose channels a test can write |
//! | [`host`] | that endpoints of this host may call |
//! | [`sleep`], [`threads`] | with a [`wait_fd`](link_api::SleepLink::wait_fd); the latter that are [`Send`] |
//! | [`sync`], [`regions`], [`pieces`], [`stale_pieces`] | with [`RmaCaps::SYNC`](link_api::RmaCaps::SYNC) |
//! | [`shared_pieces`] | those that are [`Send`] besides |
//! | [`frames_only`] | without |
//! | [`handles`], [`flights`] | with `HOST_HANDLES`, `HOST_GETS` or `DEVICE_HANDLES` |
//! | [`regions_in_flight`] | with `REGIONS` |
//! | [`sleep_in_flight`] | that have a descriptor as well |
//!
//! [`conform!`](crate::conform) makes a test of each.

pub mod ends;
pub mod flights;
pub mod frames;
pub mod frames_only;
pub mod handles;
pub mod host;
pub mod hostile;
pub mod peers;
pub mod pieces;
pub mod polls;
pub mod regions;
pub mod regions_in_flight;
pub mod returns;
pub mod shared_pieces;
pub mod sleep;
pub mod sleep_in_flight;
pub mod stale_pieces;
pub mod sync;
pub mod threads;

/// Makes a module of tests of each group, for links of the harness that the expression makes.
#[macro_export]
macro_rules! conform {
    ($new:expr; $($group:ident)*) => { $( $crate::conform! { @ $group $new } )* };
    (@ frames $new:expr) => { $crate::conform! { @@ frames $new;
        a_frame_is_its_head_and_the_right_part_of_its_body
        a_frame_may_have_no_body_and_no_bytes
        frames_up_to_the_longest_arrive
        the_last_copy_of_a_frame_leaves_the_next_one_whole
        a_frame_is_taken_whole_or_stays
        what_is_sent_corked_comes_in_order_when_that_is_over
        what_was_sent_is_copied_when_the_call_returns
        frames_of_each_peer_come_in_order_and_none_is_lost
        a_link_that_is_busy_has_sent_nothing_and_takes_the_same_frame_later
        a_frame_stays_until_it_is_given_back
        a_peek_is_the_first_bytes_or_none
        an_endpoint_reaches_itself
        there_is_room_to_spare_until_much_is_under_way
    } };
    (@ polls $new:expr) => { $crate::conform! { @@ polls $new;
        all_ways_to_poll_together_lose_nothing
        a_poll_finds_the_rest_where_the_quick_way_says_unknown
        frames_of_one_peer_are_those_of_that_peer
        a_link_that_is_said_to_have_frames_has_one
    } };
    (@ peers $new:expr) => { $crate::conform! { @@ peers $new;
        a_name_is_one_peer_and_a_peer_one_name
        a_path_stays_as_it_is_and_holds_what_it_has_to
        a_peer_is_connected_once_either_has_called
        a_peer_that_is_not_there_is_gone
        a_number_that_was_forgotten_may_be_anothers
        a_peer_that_is_connected_is_not_forgotten
        what_a_path_is_like_is_described_in_one_line
    } };
    (@ ends $new:expr) => { $crate::conform! { @@ ends $new;
        an_end_is_reported_once_and_after_all_frames
        an_end_is_reported_to_those_that_only_sent
        nothing_is_sent_to_a_peer_that_has_ended
        a_peer_that_is_cut_off_is_closed_and_others_are_not
        an_expected_peer_that_never_comes_is_given_up
        an_expected_peer_that_comes_is_not_given_up
    } };
    (@ returns $new:expr) => { $crate::conform! { @@ returns $new;
        a_successor_is_connected_to_anew_under_the_same_number
        frames_of_a_successor_come_after_the_end_of_the_former
        a_peer_that_was_cut_off_can_be_connected_anew
    } };
    (@ hostile $new:expr) => { $crate::conform! { @@ hostile $new;
        nonsense_ends_its_channel_and_no_other
    } };
    (@ host $new:expr) => { $crate::conform! { @@ host $new;
        a_caller_of_this_host_is_refused_where_another_link_serves_it
    } };
    (@ sleep $new:expr) => { $crate::conform! { @@ sleep $new;
        a_link_with_a_frame_does_not_sleep
        a_frame_wakes
        an_end_wakes
        room_wakes
        room_that_was_made_before_a_poll_wakes
        an_end_that_is_still_to_be_reported_wakes
        a_channel_wakes
        an_idle_link_sleeps
        an_armed_link_says_so_until_it_is_polled
    } };
    (@ sleep_in_flight $new:expr) => { $crate::conform! { @@ sleep_in_flight $new;
        an_operation_that_is_over_wakes
    } };
    (@ threads $new:expr) => { $crate::conform! { @@ threads $new;
        no_wake_up_is_lost
        two_threads_exchange_all_they_send
    } };
    (@ sync $new:expr) => { $crate::conform! { @@ sync $new;
        bytes_are_read_and_written_where_they_should_be
        nothing_outside_of_what_was_named_is_touched
        memory_that_is_not_mapped_is_refused
        a_request_that_was_taken_back_allows_nothing_and_others_still_do
        a_name_that_was_renewed_allows_again
        an_endpoint_that_closed_is_not_accessed
        an_endpoint_that_ended_is_not_accessed
    } };
    (@ regions $new:expr) => { $crate::conform! { @@ regions $new;
        a_region_is_found_as_it_was_published_and_accessed
        a_region_that_is_not_published_any_more_allows_nothing
        a_region_that_changed_is_another
    } };
    (@ regions_in_flight $new:expr) => { $crate::conform! { @@ regions_in_flight $new;
        bytes_of_a_region_are_there_when_an_access_is_over
        what_a_region_does_not_allow_is_refused
        a_region_that_was_taken_back_is_not_touched
        a_region_that_changed_is_another_in_flight
        a_region_that_its_owner_must_observe_is_not_accessed_without_it
    } };
    (@ pieces $new:expr) => { $crate::conform! { @@ pieces $new;
        each_piece_is_handed_out_once
        a_counter_that_is_closed_hands_out_nothing
        a_generation_does_not_come_again
        it_is_known_whether_a_second_piece_was_taken
    } };
    (@ stale_pieces $new:expr) => { $crate::conform! { @@ stale_pieces $new;
        closing_by_the_name_of_an_earlier_transfer_does_nothing
    } };
    (@ shared_pieces $new:expr) => { $crate::conform! { @@ shared_pieces $new;
        two_threads_never_take_the_same_piece
    } };
    (@ frames_only $new:expr) => { $crate::conform! { @@ frames_only $new;
        what_is_not_done_in_a_call_is_refused_for_good
    } };
    (@ handles $new:expr) => { $crate::conform! { @@ handles $new;
        bytes_are_there_when_an_access_is_over
        a_handle_is_exported_once_to_each_peer
        memory_without_a_handle_is_refused
        nothing_outside_of_a_handle_is_touched
        operations_are_distinguished
        a_cancelled_operation_touches_nothing_and_is_not_reported
        a_request_that_was_taken_back_starts_and_moves_nothing
        an_operation_to_a_peer_that_ends_is_reported_once
    } };
    (@ flights $new:expr) => { $crate::conform! { @@ flights $new;
        memory_that_was_taken_back_in_flight_is_not_touched
    } };
    (@@ $group:ident $new:expr; $($check:ident)*) => {
        mod $group {
            #[allow(unused_imports)]
            use super::*;
            $(
                #[test]
                fn $check() {
                    $crate::conformance::$group::$check(&mut $new);
                }
            )*
        }
    };
}
