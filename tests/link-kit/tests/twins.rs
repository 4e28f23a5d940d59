//! The checks notice what they are for: each flaw is found by its check, and said to be what it is.

#![allow(clippy::duplicate_mod)]

#[path = "support/memory.rs"]
mod memory;
#[path = "support/shm.rs"]
mod shm;
#[path = "support/tcp.rs"]
mod tcp;

use link_kit::keyed::KeyedHarness;
use link_kit::{Flaw, Flawed, conformance};
use memory::MemHarness;
use shm::ShmHarness;
use tcp::TcpHarness;

/// Links over TCP on a loopback address.
struct Loopback;

impl Loopback {
    #[allow(clippy::new_ret_no_self)]
    fn new() -> TcpHarness {
        TcpHarness::new("127.0.0.1:0")
    }
}

/// Tests of each flaw. One that is missing does not compile.
macro_rules! twins {
    ($($flaw:ident: $($harness:ident $group:ident::$check:ident $said:literal),+;)*) => {
        $(
            #[allow(non_snake_case)]
            mod $flaw {
                use super::*;

                $(
                    #[test]
                    #[should_panic(expected = $said)]
                    fn $check() {
                        // What is said goes to the harness of tests alone, since it is what was to happen.
                        std::panic::set_hook(Box::new(|_| {}));
                        conformance::$group::$check(&mut Flawed::new($harness::new(), Flaw::$flaw));
                    }
                )+
            }
        )*

        #[allow(dead_code)]
        fn all(flaw: Flaw) {
            match flaw {
                Flaw::Nothing => {}
                $( Flaw::$flaw => {} )*
            }
        }
    };
}

twins! {
    DropsFrames:
        MemHarness frames::frames_of_each_peer_come_in_order_and_none_is_lost "is next",
        // Whichever thread fails first, the other one sees it end.
        KeyedHarness threads::two_threads_exchange_all_they_send "";
    SwapsFrames: MemHarness frames::frames_of_each_peer_come_in_order_and_none_is_lost "is next";
    RepeatsFrames:
        MemHarness frames::frames_of_each_peer_come_in_order_and_none_is_lost "is next",
        MemHarness frames::a_frame_may_have_no_body_and_no_bytes "left == right",
        MemHarness frames::an_endpoint_reaches_itself "left == right";
    MovesFramesToAnotherPeer: MemHarness polls::all_ways_to_poll_together_lose_nothing "is next";
    SaysFramesAreLonger: KeyedHarness hostile::nonsense_ends_its_channel_and_no_other "as many bytes as it says";
    ForgetsOffsetOfBody: MemHarness frames::a_frame_is_its_head_and_the_right_part_of_its_body "of frame 0";
    ForgetsOffsetOfRead: MemHarness frames::a_frame_is_its_head_and_the_right_part_of_its_body "of frame 0";
    ForgetsOffsetOfDestination:
        MemHarness frames::a_frame_is_its_head_and_the_right_part_of_its_body "parts of other lengths";
    TakesMoreWithLastCopy:
        MemHarness frames::the_last_copy_of_a_frame_leaves_the_next_one_whole "a frame";
    TakesAPart: MemHarness frames::a_frame_is_taken_whole_or_stays "was taken into";
    TakesNoFrame: MemHarness frames::a_frame_is_taken_whole_or_stays "no frame was taken";
    StaysCorked: MemHarness frames::what_is_sent_corked_comes_in_order_when_that_is_over "a frame";
    PeeksTooFar: MemHarness frames::a_peek_is_the_first_bytes_or_none "1 of 0 bytes";
    CutsLongFrames: KeyedHarness frames::frames_up_to_the_longest_arrive "a frame of 10240 bytes";
    SaysFramesAreShort: MemHarness frames::frames_up_to_the_longest_arrive "too short";
    CopiesLate: MemHarness frames::what_was_sent_is_copied_when_the_call_returns "as they were when";
    IsBusyThoughSent:
        MemHarness frames::a_link_that_is_busy_has_sent_nothing_and_takes_the_same_frame_later "nothing more was";
    HoldsNothing: MemHarness frames::a_frame_stays_until_it_is_given_back "at hand has changed";
    HasAlwaysRoom: MemHarness frames::there_is_room_to_spare_until_much_is_under_way "nothing more finds room";
    LosesFrameLookedAt: MemHarness polls::all_ways_to_poll_together_lose_nothing "is next";
    SaysNothingOfEnds:
        MemHarness polls::a_poll_finds_the_rest_where_the_quick_way_says_unknown "waited in vain: all frames and";
    LosesFramePutBack: MemHarness polls::all_ways_to_poll_together_lose_nothing "is next";
    LooksAtAnyPeer: MemHarness polls::frames_of_one_peer_are_those_of_that_peer "a frame of another peer";
    HasAlwaysFrames: MemHarness polls::a_link_that_is_said_to_have_frames_has_one "all frames were taken";
    ForgetsNames: MemHarness peers::a_name_is_one_peer_and_a_peer_one_name "the name of a peer";
    OneNumberForTwo: MemHarness peers::a_name_is_one_peer_and_a_peer_one_name "two names are one peer";
    ChangesPath: MemHarness peers::a_path_stays_as_it_is_and_holds_what_it_has_to "after a frame to it";
    IsAlwaysConnected: MemHarness peers::a_peer_is_connected_once_either_has_called "nothing was sent";
    IsNeverConnected: MemHarness peers::a_peer_is_connected_once_either_has_called "a channel was made";
    TakesFramesForNobody:
        MemHarness ends::nothing_is_sent_to_a_peer_that_has_ended "to a peer that has ended",
        KeyedHarness peers::a_peer_that_is_not_there_is_gone "left == right";
    ServesHostAlways:
        Loopback host::a_caller_of_this_host_is_refused_where_another_link_serves_it "that another link serves";
    ServesHostNeverAgain:
        Loopback host::a_caller_of_this_host_is_refused_where_another_link_serves_it "";
    ForgetsConnected: MemHarness peers::a_peer_that_is_connected_is_not_forgotten "given to another";
    NeverForgets: MemHarness peers::a_number_that_was_forgotten_may_be_anothers "are used again";
    DescribesNothing: MemHarness peers::what_a_path_is_like_is_described_in_one_line "no line on a path";
    ReportsEndFirst:
        MemHarness ends::an_end_is_reported_once_and_after_all_frames "no frame, but Closed",
        KeyedHarness returns::frames_of_a_successor_come_after_the_end_of_the_former "but Closed";
    ReportsEndTwice:
        MemHarness ends::an_end_is_reported_once_and_after_all_frames "nothing more was to come, but Closed",
        KeyedHarness returns::a_successor_is_connected_to_anew_under_the_same_number "but Closed";
    ReportsNoEnd: MemHarness ends::an_end_is_reported_to_those_that_only_sent "waited in vain: the end of a peer";
    CutsNobodyOff:
        MemHarness ends::a_peer_that_is_cut_off_is_closed_and_others_are_not "that was cut off",
        KeyedHarness returns::a_peer_that_was_cut_off_can_be_connected_anew "the end of a peer";
    CutsAllOff: MemHarness ends::a_peer_that_is_cut_off_is_closed_and_others_are_not "sending 5 bytes";
    ExpectsNobody: KeyedHarness ends::an_expected_peer_that_never_comes_is_given_up "that a peer is given up";
    GivesUpThosePresent: MemHarness ends::an_expected_peer_that_comes_is_not_given_up "no frame, but Closed";
    SleepsInSpiteOfFrames: KeyedHarness sleep::a_link_with_a_frame_does_not_sleep "kept from sleeping by a frame";
    LosesWakeUps:
        KeyedHarness sleep::a_frame_wakes "does not wake",
        KeyedHarness sleep::an_end_wakes "the end of a peer does not wake",
        KeyedHarness sleep::room_wakes "room does not wake",
        KeyedHarness sleep::room_that_was_made_before_a_poll_wakes "room does not wake",
        KeyedHarness sleep::an_end_that_is_still_to_be_reported_wakes "was cut off does not wake",
        KeyedHarness sleep::a_channel_wakes "that was made does not wake",
        KeyedHarness sleep_in_flight::an_operation_that_is_over_wakes "and does not wake";
    SaysItIsArmed: KeyedHarness sleep::an_armed_link_says_so_until_it_is_polled "says that it is armed";
    NeverSleeps: KeyedHarness sleep::an_idle_link_sleeps "that an idle link may sleep";
    LosesWakeUpsSometimes: KeyedHarness threads::no_wake_up_is_lost "a wake-up was lost";
    ForgetsRemoteOffset: MemHarness sync::bytes_are_read_and_written_where_they_should_be "1 bytes from 1 to 7";
    ForgetsLocalOffset: MemHarness sync::bytes_are_read_and_written_where_they_should_be "1 bytes from 1 to 7";
    SaysAllIsWell:
        MemHarness sync::nothing_outside_of_what_was_named_is_touched "65 bytes at 0 of 64 were read",
        MemHarness sync::memory_that_is_not_mapped_is_refused "left == right",
        MemHarness sync::an_endpoint_that_ended_is_not_accessed "bytes that were read";
    AllowsWhatWasTakenBack:
        MemHarness sync::a_request_that_was_taken_back_allows_nothing_and_others_still_do "after it was taken back";
    TakesBackAll: MemHarness sync::a_request_that_was_taken_back_allows_nothing_and_others_still_do "another request";
    NeverRenews: MemHarness sync::a_name_that_was_renewed_allows_again "after it was renewed";
    NeverCloses: MemHarness sync::an_endpoint_that_closed_is_not_accessed "after it closed";
    KeepsPublishing:
        MemHarness regions::a_region_that_is_not_published_any_more_allows_nothing "not published any more";
    PublishesNothingNew: MemHarness regions::a_region_that_changed_is_another "left == right";
    OneVersionForAll:
        MemHarness regions::a_region_that_changed_is_another "a change is another version",
        MemHarness regions::a_region_is_found_as_it_was_published_and_accessed "key 7";
    GivesPiecesTwice:
        MemHarness pieces::each_piece_is_handed_out_once "is next",
        ShmHarness shared_pieces::two_threads_never_take_the_same_piece "each piece once";
    KeepsGivingPieces: MemHarness pieces::a_counter_that_is_closed_hands_out_nothing "that was closed";
    GivesPiecesToOldNames: MemHarness pieces::a_generation_does_not_come_again "the name of an earlier transfer";
    NeverBegun: MemHarness pieces::it_is_known_whether_a_second_piece_was_taken "a second one was taken";
    AccessesInTheCall: KeyedHarness frames_only::what_is_not_done_in_a_call_is_refused_for_good "left == right";
    IsDoneAtOnce: KeyedHarness handles::bytes_are_there_when_an_access_is_over "bytes that were";
    IsDoneTwice:
        KeyedHarness handles::operations_are_distinguished "one that is in flight",
        KeyedHarness handles::an_operation_to_a_peer_that_ends_is_reported_once "Done";
    SaysAllIsDone:
        KeyedHarness handles::memory_without_a_handle_is_refused "never exported",
        KeyedHarness handles::nothing_outside_of_a_handle_is_touched "beyond the end";
    ReusesOperations: KeyedHarness handles::operations_are_distinguished "was given out before";
    ExportsAgain: KeyedHarness handles::a_handle_is_exported_once_to_each_peer "it was exported";
    ExportsOncePerLink: KeyedHarness handles::a_handle_is_exported_once_to_each_peer "another peer was not";
    NeverCancels:
        KeyedHarness handles::a_cancelled_operation_touches_nothing_and_is_not_reported "accessed after a cancel";
    ReportsCancelled:
        KeyedHarness handles::a_cancelled_operation_touches_nothing_and_is_not_reported "is in flight, but Done";
    NeverTakesBack: KeyedHarness flights::memory_that_was_taken_back_in_flight_is_not_touched "after it was taken back";
    AllowsTakenBackStarts:
        KeyedHarness handles::a_request_that_was_taken_back_starts_and_moves_nothing "that was taken back";
}

/// Without a flaw all checks pass, so that it is the flaw that each of the others is found by.
mod nothing {
    use super::*;

    mod memory {
        use super::*;

        link_kit::conform! {
            Flawed::new(MemHarness::new(), Flaw::Nothing);
            frames polls peers ends hostile sync regions pieces handles
        }
    }

    mod keyed {
        use super::*;

        link_kit::conform! {
            Flawed::new(KeyedHarness::new(), Flaw::Nothing);
            returns hostile sleep threads frames_only handles flights sleep_in_flight
        }
    }
}
