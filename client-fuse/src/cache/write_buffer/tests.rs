//! The write buffer against a plain array of bytes.

use proptest::prelude::*;

use super::*;

const SLOT: u64 = 64;
const FILE: usize = 300;

#[derive(Clone, Debug)]
enum Step {
    Write { offset: usize, len: usize, byte: u8 },
    TakeOff(u64),
    Land(u64),
    Cut(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let slots = (FILE as u64).div_ceil(SLOT);
    prop_oneof![
        4 => (0..FILE, 1..100_usize, 1..=255_u8).prop_map(|(offset, len, byte)| Step::Write {
            offset, len: len.min(FILE - offset), byte,
        }),
        2 => (0..slots).prop_map(Step::TakeOff),
        2 => (0..slots).prop_map(Step::Land),
        1 => (0..FILE).prop_map(Step::Cut),
    ]
}

proptest! {
    #[test]
    fn what_was_written_is_read_back_wherever_it_is_on_its_way(
        steps in proptest::collection::vec(step(), 0..80)
    ) {
        let mut buffer = WriteBuffer::new(SLOT);
        let mut expected = vec![0_u8; FILE];
        let mut target = vec![0_u8; FILE];
        let mut flying: BTreeMap<u64, Vec<Flight>> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Write { offset, len, byte } => {
                    buffer.insert(offset as u64, &vec![byte; len]);
                    expected[offset..offset + len].fill(byte);
                }
                Step::TakeOff(index) => {
                    if let Some(flights) = buffer.take_off(SlotIndex(index)) {
                        prop_assert!(!flying.contains_key(&index), "one at a time");
                        for flight in &flights {
                            let end = flight.start + length(&flight.data);
                            prop_assert_eq!(flight.start / SLOT, index);
                            prop_assert!(end <= (index + 1) * SLOT);
                        }
                        flying.insert(index, flights);
                    }
                }
                Step::Land(index) => {
                    for flight in flying.remove(&index).unwrap_or_default() {
                        let start = usize::try_from(flight.start).unwrap();
                        target[start..start + flight.data.len()].copy_from_slice(&flight.data);
                    }
                    buffer.land(SlotIndex(index));
                }
                Step::Cut(from) => {
                    // The caller lets flights land before it cuts; see `FileSystem::truncate`.
                    for (index, flights) in std::mem::take(&mut flying) {
                        for flight in flights {
                            let start = usize::try_from(flight.start).unwrap();
                            target[start..start + flight.data.len()].copy_from_slice(&flight.data);
                        }
                        buffer.land(SlotIndex(index));
                    }
                    buffer.cut(from as u64);
                    expected[from..].fill(0);
                    target[from..].fill(0);
                }
            }
            let mut read = target.clone();
            buffer.overlay(0, &mut read);
            prop_assert_eq!(&read, &expected);
            let extents: u64 = buffer.slots.values().flat_map(|slot| &slot.extents)
                .map(|extent| length(&extent.data)).sum();
            prop_assert_eq!(buffer.dirty_bytes(), extents);
            for slot in buffer.slots.values() {
                prop_assert!(slot.extents.windows(2).all(|pair| pair[0].end() < pair[1].start));
            }
        }
    }

    #[test]
    fn overlaps_says_whether_overlay_changes_anything(
        writes in proptest::collection::vec((0..FILE, 1..60_usize), 0..6),
        start in 0..FILE, len in 1..80_usize,
    ) {
        let mut buffer = WriteBuffer::new(SLOT);
        for (offset, len) in writes {
            buffer.insert(offset as u64, &vec![7; len]);
        }
        let mut read = vec![0; len];
        buffer.overlay(start as u64, &mut read);
        let range = start as u64..(start + len) as u64;
        prop_assert_eq!(buffer.overlaps(&range), read.contains(&7));
        let covered = read.iter().all(|&byte| byte == 7);
        prop_assert_eq!(buffer.read_covered(&range), covered.then_some(read));
    }
}

#[test]
fn a_writer_that_goes_forward_fills_slot_after_slot() {
    let mut buffer = WriteBuffer::new(SLOT);
    assert!(buffer.insert(0, &[1; 40]).is_empty());
    assert_eq!(buffer.insert(40, &[2; 40]), [SlotIndex(0)]);
    assert_eq!(buffer.insert(80, &[3; 120]), [SlotIndex(1), SlotIndex(2)]);
    let flights = buffer.take_off(SlotIndex(0)).expect("something is dirty");
    assert_eq!(flights.len(), 1);
    assert_eq!(flights[0].data.len(), 64);
    assert!(buffer.take_off(SlotIndex(0)).is_none(), "not while it flies");
    buffer.insert(10, &[9; 4]);
    assert!(buffer.take_off(SlotIndex(0)).is_none(), "and not what was written meanwhile");
    assert_eq!(buffer.land(SlotIndex(0)), 64);
    assert_eq!(buffer.take_off(SlotIndex(0)).expect("now it may")[0].start, 10);
}

#[test]
fn who_waits_for_what_was_written_waits_for_nothing_that_comes_later() {
    let mut buffer = WriteBuffer::new(SLOT);
    let none = buffer.written();
    assert!(!buffer.holds(none));
    buffer.insert(0, &[1; 10]);
    buffer.insert(SLOT, &[1; 10]);
    let (all, second) = (buffer.written(), buffer.written_to(&(SLOT + 50..SLOT + 60)));
    buffer.insert(2 * SLOT, &[2; 10]);
    assert_eq!(buffer.dirty_slots().len(), 3);
    assert_eq!(buffer.dirty_slots_of(all), [SlotIndex(0), SlotIndex(1)]);
    assert_eq!(buffer.dirty_slots_of(second), [SlotIndex(1)], "a slot is sent as a whole");
    assert!(buffer.dirty_slots_of(none).is_empty() && !buffer.holds(none));

    // Joined with older bytes, or over them: those count.
    buffer.insert(5, &[3; 20]);
    assert!(buffer.take_off(SlotIndex(0)).is_some());
    // Over what flies: a write of its own.
    buffer.insert(0, &[4; 10]);
    assert_eq!(buffer.dirty_slots_of(all), [SlotIndex(1)]);
    assert!(buffer.holds(all) && buffer.has_flights_before(all));
    assert!(!buffer.has_flights_before(second), "another slot");
    let later = buffer.written();
    assert_eq!(buffer.dirty_slots_of(later).first(), Some(&SlotIndex(0)));
    buffer.land(SlotIndex(0));
    assert!(buffer.take_off(SlotIndex(1)).is_some());
    buffer.insert(SLOT, &[5; 60]);
    assert!(buffer.holds(second));
    buffer.land(SlotIndex(1));
    assert!(!buffer.holds(all) && !buffer.holds(second));
    assert!(buffer.holds(later), "and this for what was written over it");

    // What is cut off nobody waits for.
    buffer.cut(0);
    buffer.insert(0, &[6; 10]);
    assert!(!buffer.holds(later) && buffer.holds(buffer.written()));
}

#[test]
fn what_grows_a_file_is_known_until_it_has_landed() {
    let mut buffer = WriteBuffer::new(SLOT);
    let write = |buffer: &mut WriteBuffer, range: Range<u64>, size| {
        let len = usize::try_from(range.end - range.start).expect("a few bytes");
        buffer.insert(range.start, &vec![1; len]);
        buffer.record_growth(&range, size);
    };
    write(&mut buffer, 0..10, 20);
    assert_eq!(buffer.first_growth(), None, "it lies within the file");
    write(&mut buffer, 5..2 * SLOT, 20);
    assert_eq!(buffer.first_growth(), Some(20));
    assert!(buffer.take_off(SlotIndex(0)).is_some() && buffer.take_off(SlotIndex(1)).is_some());
    assert_eq!(buffer.first_growth(), Some(20), "on its way");
    write(&mut buffer, 30..40, 2 * SLOT);
    buffer.land(SlotIndex(0));
    assert_eq!(buffer.first_growth(), Some(SLOT));
    buffer.land(SlotIndex(1));
    assert_eq!(buffer.first_growth(), None, "something was stored where the rest goes");

    // The file ends elsewhere than was thought.
    buffer.renew_growth(35);
    assert_eq!(buffer.first_growth(), Some(35));
    buffer.cut(35);
    assert_eq!((buffer.first_growth(), buffer.end()), (None, 35));
    buffer.renew_growth(0);
    assert_eq!(buffer.first_growth(), Some(30));
}

#[test]
fn what_lies_behind_a_smaller_end_leaves_a_hole() {
    let mut buffer = WriteBuffer::new(100);
    assert_eq!((buffer.end(), buffer.leaves_hole(0)), (0, false));
    buffer.insert(50, &[1; 100]);
    assert_eq!(buffer.end(), 150);
    let holes = [0, 49, 50, 150, 200].map(|size| buffer.leaves_hole(size));
    assert_eq!(holes, [true, true, false, false, false]);
    buffer.insert(160, &[1; 10]);
    let holes = [0, 50, 150, 159, 160, 300].map(|size| buffer.leaves_hole(size));
    assert_eq!(holes, [true, true, true, true, false, false]);

    let mut buffer = WriteBuffer::new(100);
    buffer.insert(0, &[1; 150]);
    assert!(!buffer.leaves_hole(0));
    let first = buffer.dirty_slots()[0];
    assert!(buffer.take_off(first).is_some());
    assert!(buffer.leaves_hole(0), "what is on its way may have gone elsewhere");
    assert!(!buffer.leaves_hole(100));
    buffer.land(first);
    assert_eq!((buffer.end(), buffer.leaves_hole(0)), (150, true));
}

#[test]
fn flights_are_of_the_session_in_which_the_oldest_was_written_of_what_waited() {
    let mut buffer = WriteBuffer::new(SLOT);
    let write = |buffer: &mut WriteBuffer, session, offset| {
        buffer.record_session(SessionId(session));
        buffer.insert(offset, b"bytes");
    };
    let session_of = |buffer: &mut WriteBuffer, index| {
        let flights = buffer.take_off(SlotIndex(index)).expect("something is dirty");
        flights[0].session
    };
    write(&mut buffer, 1, 0);
    write(&mut buffer, 2, 10);
    write(&mut buffer, 2, SLOT);
    assert_eq!(session_of(&mut buffer, 0), Some(SessionId(1)));
    assert_eq!(session_of(&mut buffer, 1), Some(SessionId(1)), "it waited with older ones");
    // What was sent, or given up, says nothing of what is written then.
    write(&mut buffer, 2, 2 * SLOT);
    buffer.cut(0);
    write(&mut buffer, 3, 3 * SLOT);
    assert_eq!(session_of(&mut buffer, 3), Some(SessionId(3)));
}
