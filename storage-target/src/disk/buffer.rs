//! Memory for disk transfers: aligned, recycled, and bounded as a whole.
//!
//! The pool's budget counts the bytes of buffers in use, wherever they travel: under the kernel, in
//! a reply on its way to the network, or in a fill from a bucket. Whoever wants more waits, which
//! is how pressure reaches the network. Holding a buffer while waiting for another could deadlock,
//! so every operation takes all that it needs with one call. Nor does anybody who holds one wait
//! for the blocks of a chunk, whose holders wait for buffers. What cannot do with one call takes a
//! *share* before the first one: of these there are so few that most of the budget is always with
//! somebody who gives it back without waiting for any.
//!
//! Several targets have one pool. What the disk of one, or a bucket, may have of it in hand has a
//! bound of its own (`parts`), and so have shares. However many buckets stand still, segments have
//! 1/2 of the pool, shares 1/8 and fetches that have a turn 1/4: together 7/8. So 1/8 is left to
//! what waits for a disk alone. (Of small parts shares have one buffer each, which may be more.)
//!
//! Part of the pool is an *arena*: one run of memory in huge pages, cut into buffers of all sizes,
//! which are given out first. Because it stays where it is, a disk engine can make it known to the
//! kernel once, instead of with each transfer.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    fmt,
    ptr::NonNull,
    slice,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

mod arena;
mod parts;

pub(super) use arena::Arena;
pub(crate) use parts::SegmentRoom;

use bytes::Bytes;
use millrace_types::LinkId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::parts::Parts;
use super::ALIGNMENT;

/// The sizes that buffers are made in. The largest holds 1 MiB that starts anywhere: 17 blocks of
/// 64 KiB. The smaller ones fit a page, a small file and a fill's segment.
const CLASSES: [usize; 4] = [16 * 1024, 64 * 1024, 256 * 1024, BUFFER_SIZE_MAX];

/// Which part of the budget is the arena, and which part of that are buffers of each size.
const ARENA_PART: usize = 5;
const CLASS_PERCENT: [usize; CLASSES.len()] = [10, 10, 20, 60];

/// Fetches that may hold two buffers while they wait for a third: these are so many buffers of the
/// budget for each turn.
const TURN_PART: usize = 8;

/// The largest buffer: 17 blocks of 64 KiB.
pub const BUFFER_SIZE_MAX: usize = 17 * 64 * 1024;

/// Permits for memory that are given back once nobody has a clone.
pub(crate) type Charge = Arc<OwnedSemaphorePermit>;

/// Gives out aligned buffers within a budget. Cheap to clone.
#[derive(Clone)]
pub struct BufferPool {
    inner: Arc<Inner>,
    /// What the target that has this handle may have in hand.
    parts: Arc<Parts>,
}

struct Inner {
    /// One permit for each [`ALIGNMENT`] bytes.
    budget: Arc<Semaphore>,
    budget_pages: AtomicUsize,
    /// `None` where the system gives no memory for one.
    arena: Option<Arc<Arena>>,
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    /// Of the arena.
    fixed: [Vec<Memory>; CLASSES.len()],
    /// Allocated one by one.
    single: [Vec<Memory>; CLASSES.len()],
    /// Bytes of these.
    single_bytes: usize,
}

impl Free {
    /// All buffers of an arena.
    fn of_arena(arena: &Arc<Arena>) -> Self {
        let mut free = Self::default();
        let mut start = 0;
        for (class, &size) in CLASSES.iter().enumerate().rev() {
            for _ in 0..arena.len() * CLASS_PERCENT[class] / 100 / size {
                if start + size <= arena.len() {
                    free.fixed[class].push(Memory::of_arena(arena, start, size));
                    start += size;
                }
            }
        }
        free
    }
}

impl BufferPool {
    /// A pool whose buffers in use never exceed `budget_bytes` (at least 8 of the largest).
    #[must_use]
    pub fn new(budget_bytes: usize) -> Self {
        let budget_pages = budget_bytes.max(8 * BUFFER_SIZE_MAX) / ALIGNMENT;
        let budget = Arc::new(Semaphore::new(budget_pages));
        let arena = Arena::map(budget_pages * ALIGNMENT / ARENA_PART);
        let arena = arena.map(Arc::new).inspect_err(|error| {
            tracing::debug!(%error, "no arena for buffers");
        });
        let arena = arena.ok();
        let free = Mutex::new(arena.as_ref().map(Free::of_arena).unwrap_or_default());
        let inner = Inner { budget, budget_pages: AtomicUsize::new(budget_pages), arena, free };
        Self { inner: Arc::new(inner), parts: Parts::of_one(budget_pages) }
    }

    /// A handle of the pool for each of so many targets. The pool gets what is missing to the least
    /// for these: two of the largest buffers each, and eight besides. To be called once.
    #[must_use]
    pub(crate) fn divide(&self, targets: usize) -> Vec<Self> {
        let missing = Parts::pages_min(targets).saturating_sub(self.inner.budget_pages());
        self.inner.budget.add_permits(missing);
        self.inner.budget_pages.fetch_add(missing, Ordering::Relaxed);
        let parts = Parts::of_each(targets, self.inner.budget_pages());
        parts.map(|parts| Self { inner: Arc::clone(&self.inner), parts }).collect()
    }

    /// Waits for a buffer of `len` bytes, rounded up to whole pages. Its content is arbitrary.
    ///
    /// May be dropped at its await.
    ///
    /// # Panics
    /// When `len` exceeds [`BUFFER_SIZE_MAX`].
    pub async fn acquire(&self, len: usize) -> AlignedBuffer {
        let class = class_of(len);
        let permit = Arc::clone(&self.inner.budget)
            .acquire_many_owned(pages_of(len))
            .await
            .expect("the pool never closes its budget");
        let recycled = {
            let mut free = self.inner.free.lock().unwrap_or_else(PoisonError::into_inner);
            free.fixed[class].pop().or_else(|| {
                let memory = free.single[class].pop()?;
                free.single_bytes -= memory.len;
                Some(memory)
            })
        };
        let memory = recycled.unwrap_or_else(|| Memory::allocate(CLASSES[class]));
        AlignedBuffer {
            memory: Some(memory),
            len: len.next_multiple_of(ALIGNMENT),
            class,
            pool: Arc::clone(&self.inner),
            room: None,
            charge: None,
            _permit: permit,
        }
    }

    /// The same for what the target's disk is to have in hand: waits first until that is little
    /// enough. The buffer counts as in its hand until it is discharged or dropped.
    ///
    /// May be dropped at its await.
    ///
    /// # Panics
    /// As [`Self::acquire`].
    pub(crate) async fn acquire_for_disk(&self, len: usize) -> AlignedBuffer {
        let room = self.parts.take(pages_of(len)).await;
        let mut buffer = self.acquire(len).await;
        buffer.room = Some(room);
        buffer
    }

    /// Waits until little enough comes from a link's bucket, or is not yet on the target's disk, to
    /// take a buffer for `len` bytes more of it. To be kept until the disk has these.
    ///
    /// May be dropped at its await.
    ///
    /// # Panics
    /// As [`Self::acquire`].
    pub(crate) async fn segment_room(&self, link: LinkId, len: usize) -> SegmentRoom {
        self.parts.take_for_segment(link, pages_of(len)).await
    }

    /// Waits for the right to hold a buffer of this length while waiting for another one, or for
    /// somebody who needs some. To be asked for by who holds none, and kept for as long as anything
    /// is waited for.
    ///
    /// May be dropped at its await.
    ///
    /// # Panics
    /// As [`Self::acquire`].
    pub(crate) async fn share(&self, len: usize) -> OwnedSemaphorePermit {
        self.parts.take_share(pages_of(len)).await
    }

    /// How many fetches of the target may wait for a third buffer while they hold two.
    pub(crate) fn turns(&self) -> usize {
        let buffers = self.budget_bytes() / BUFFER_SIZE_MAX;
        (buffers / TURN_PART / self.parts.targets().max(1)).max(1)
    }

    /// The run of memory that buffers are taken from first.
    pub(super) fn arena(&self) -> Option<&Arc<Arena>> {
        self.inner.arena.as_ref()
    }

    /// Bytes that buffers in use come to at most.
    #[must_use]
    pub fn budget_bytes(&self) -> usize {
        self.inner.budget_pages() * ALIGNMENT
    }

    /// Bytes of the budget that a buffer of `len` bytes takes.
    ///
    /// # Panics
    /// As [`Self::acquire`].
    #[must_use]
    pub fn size_for(len: usize) -> usize {
        CLASSES[class_of(len)]
    }

    /// Bytes of the buffers in use now.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.inner.budget_pages().saturating_sub(self.inner.budget.available_permits()) * ALIGNMENT
    }
}

/// What a buffer of `len` bytes takes of a budget.
fn pages_of(len: usize) -> u32 {
    u32::try_from(CLASSES[class_of(len)] / ALIGNMENT).expect("272 pages at most")
}

/// The size in which a buffer of `len` bytes is made, by its place among all.
fn class_of(len: usize) -> usize {
    let class = CLASSES.iter().position(|&size| len <= size);
    class.expect("no operation asks for more than the largest buffer")
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool").field("used_bytes", &self.used_bytes()).finish()
    }
}

impl Inner {
    fn budget_pages(&self) -> usize {
        self.budget_pages.load(Ordering::Relaxed)
    }

    fn recycle(&self, class: usize, memory: Memory) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        // An eighth of the budget kept warm beside the arena serves a steady load; the rest goes
        // back to the system.
        if memory.arena.is_some() {
            free.fixed[class].push(memory);
        } else if free.single_bytes + memory.len <= self.budget_pages() * ALIGNMENT / 8 {
            free.single_bytes += memory.len;
            free.single[class].push(memory);
        }
    }
}

/// Bytes that start at a multiple of [`ALIGNMENT`]. Goes back to its pool when dropped.
pub struct AlignedBuffer {
    /// `None` only while being dropped.
    memory: Option<Memory>,
    len: usize,
    class: usize,
    pool: Arc<Inner>,
    /// Of what its target's disk may have in hand.
    room: Option<OwnedSemaphorePermit>,
    /// What it counts against besides the pool.
    charge: Option<Charge>,
    _permit: OwnedSemaphorePermit,
}

impl AlignedBuffer {
    /// Bytes of the buffer: whole pages.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a buffer is made for bytes, never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.memory().as_slice()[..self.len]
    }

    /// The bytes, to be changed.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let len = self.len;
        &mut self.memory.as_mut().expect("present until dropped").as_mut_slice()[..len]
    }

    /// Hands the bytes out without copying; the buffer returns when the last handle is dropped.
    #[must_use]
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    /// Counts the buffer against permits as well, wherever it is, until it is discharged.
    pub(crate) fn charge(&mut self, to: &Charge) {
        self.charge = Some(Arc::clone(to));
    }

    /// Counts it against the pool alone.
    pub(crate) fn discharge(&mut self) {
        drop((self.room.take(), self.charge.take()));
    }

    /// Where the buffer lies, for the kernel.
    pub(super) fn as_ptr(&self) -> NonNull<u8> {
        self.memory().start
    }

    /// The arena that the buffer is part of.
    pub(super) fn arena(&self) -> Option<&Arc<Arena>> {
        self.memory().arena.as_ref()
    }

    fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("present until dropped")
    }
}

impl AsRef<[u8]> for AlignedBuffer {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.pool.recycle(self.class, memory);
        }
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuffer({} bytes)", self.len)
    }
}

/// The memory of one buffer, always initialised.
struct Memory {
    start: NonNull<u8>,
    len: usize,
    /// What it is part of; `None`: an allocation of its own.
    arena: Option<Arc<Arena>>,
}

// SAFETY: the memory has one owner and is plain bytes.
unsafe impl Send for Memory {}
// SAFETY: shared access only reads plain bytes.
unsafe impl Sync for Memory {}

impl Memory {
    fn allocate(len: usize) -> Self {
        let layout = Self::layout(len);
        // SAFETY: every class has a size above zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, len, arena: None }
    }

    /// A part of an arena, which the caller gives to nobody else.
    fn of_arena(arena: &Arc<Arena>, start: usize, len: usize) -> Self {
        Self { start: arena.part(start, len), len, arena: Some(Arc::clone(arena)) }
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, ALIGNMENT).expect("a class is a sound layout")
    }

    fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory is initialised, `len` long, no other buffer's, and lives as long as
        // `self`; writers need `&mut self` or, in the disk engines, own the whole buffer.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the access exclusive.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.arena.is_none() {
            // SAFETY: allocated with this layout in `allocate`, freed once.
            unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn buffers_are_aligned_and_come_back_to_the_pool() {
        let pool = BufferPool::new(0);
        for len in [1, 4096, 4097, 65_536, BUFFER_SIZE_MAX] {
            let mut buffer = pool.acquire(len).await;
            assert_eq!(buffer.as_slice().as_ptr() as usize % ALIGNMENT, 0);
            assert_eq!(buffer.len(), len.next_multiple_of(ALIGNMENT));
            buffer.as_mut_slice().fill(7);
            let bytes = buffer.freeze();
            assert!(bytes.iter().all(|&byte| byte == 7));
            assert!(pool.used_bytes() >= len);
            drop(bytes);
            assert_eq!(pool.used_bytes(), 0);
        }
    }

    #[tokio::test]
    async fn buffers_never_share_memory_whether_the_arena_is_used_up_or_not() {
        let pool = BufferPool::new(32 << 20);
        let mut held = Vec::new();
        for (class, &size) in CLASSES.iter().enumerate() {
            for _ in 0..(4 << 20) / size {
                let mut buffer = pool.acquire(size).await;
                assert!(buffer.as_slice().iter().all(|&byte| byte == 0), "nobody has had it yet");
                buffer.as_mut_slice().fill(u8::try_from(class).unwrap() + 1);
                held.push((class, buffer));
            }
        }
        let of_arena = held.iter().filter(|(_, buffer)| buffer.arena().is_some()).count();
        assert!(0 < of_arena && of_arena < held.len(), "{of_arena} of {}", held.len());
        for (class, buffer) in &held {
            let byte = u8::try_from(*class).unwrap() + 1;
            assert!(buffer.as_slice().iter().all(|&found| found == byte));
        }
        held.clear();
        assert!(pool.acquire(1).await.arena().is_some(), "the arena's come back, and go first");
    }

    #[tokio::test]
    async fn past_the_budget_the_next_one_waits() {
        let pool = BufferPool::new(0);
        let mut held = Vec::new();
        for _ in 0..8 {
            held.push(pool.acquire(BUFFER_SIZE_MAX).await);
        }
        assert!(pool.acquire(1).now_or_never().is_none());
        held.pop();
        assert!(pool.acquire(1).now_or_never().is_some());
    }

    #[tokio::test]
    async fn who_holds_buffers_and_waits_for_more_leaves_most_of_them_to_others() {
        let pool = BufferPool::new(0);
        let one = pool.share(BUFFER_SIZE_MAX - 1).now_or_never();
        let one = one.expect("two of eight are given out");
        let other = pool.share(BUFFER_SIZE_MAX).now_or_never().expect("the second");
        assert!(pool.share(1).now_or_never().is_none());
        drop(other);
        assert!(pool.share(BUFFER_SIZE_MAX).now_or_never().is_some());
        drop(one);
        assert_eq!(pool.used_bytes(), 0, "a share is no buffer");
    }

    #[tokio::test]
    async fn a_pool_grows_to_what_its_targets_need_at_least() {
        let pool = BufferPool::new(0);
        let of_each = pool.divide(3);
        assert_eq!(pool.budget_bytes(), 14 * BUFFER_SIZE_MAX);
        assert_eq!((pool.used_bytes(), of_each[0].turns()), (0, 1));
        let held: Vec<_> =
            std::iter::from_fn(|| pool.acquire(BUFFER_SIZE_MAX).now_or_never()).collect();
        assert_eq!(held.len(), 14);
        let large = BufferPool::new(160 << 20);
        assert_eq!(large.divide(2)[1].turns(), 9);
        assert_eq!(large.budget_bytes(), 160 << 20);
    }
}
