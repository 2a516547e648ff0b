//! Structures of a fixed length, described by their byte tables.
//!
//! The kernel's structures are in the byte order of the machine, and every field has its natural
//! alignment inside a structure. Nothing is cast here: each field is read from and written to its
//! offset, so that a request needs no alignment and no `unsafe`. What no field covers is padding:
//! it is written as zeros and not looked at when read, because later versions give it a meaning.

/// A value with a fixed place in a message.
pub trait Wire: Sized {
    /// Its length in bytes.
    const LEN: usize;

    /// Reads it from the first [`Self::LEN`] bytes; `None` when there are fewer.
    fn get(bytes: &[u8]) -> Option<Self>;

    /// Writes it to the first [`Self::LEN`] bytes.
    ///
    /// # Panics
    /// When there are fewer.
    fn put(&self, bytes: &mut [u8]);
}

macro_rules! wire_integers {
    ($($integer:ty),*) => {$(
        impl Wire for $integer {
            const LEN: usize = size_of::<$integer>();

            fn get(bytes: &[u8]) -> Option<Self> {
                bytes.first_chunk().map(|bytes| Self::from_ne_bytes(*bytes))
            }

            fn put(&self, bytes: &mut [u8]) {
                bytes[..Self::LEN].copy_from_slice(&self.to_ne_bytes());
            }
        }
    )*};
}

wire_integers!(u16, u32, u64, i32, i64);

/// Declares a structure by its byte table: `offset => field: type`, in ascending order, and its
/// length behind its name. A field that lies outside, or on another one, does not compile.
macro_rules! wire_struct {
    (
        $(#[$outer:meta])*
        $name:ident [$len:literal] {
            $($(#[$inner:meta])* $offset:literal => $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$inner])* pub $field: $type,)*
        }

        impl $name {
            /// The structure's length in bytes.
            pub const LEN: usize = $len;

            /// As the kernel reads it.
            #[must_use]
            pub fn encode(&self) -> [u8; $len] {
                let mut bytes = [0; $len];
                $crate::wire::Wire::put(self, &mut bytes);
                bytes
            }
        }

        impl $crate::wire::Wire for $name {
            const LEN: usize = $len;

            fn get(bytes: &[u8]) -> Option<Self> {
                let bytes = bytes.get(..$len)?;
                Some(Self { $($field: <$type as $crate::wire::Wire>::get(&bytes[$offset..])?,)* })
            }

            fn put(&self, bytes: &mut [u8]) {
                bytes[..$len].fill(0);
                $($crate::wire::Wire::put(&self.$field, &mut bytes[$offset..]);)*
            }
        }

        const _: () = {
            let mut end = 0;
            $(
                assert!($offset >= end, "fields do not overlap, and lie in order");
                end = $offset + <$type as $crate::wire::Wire>::LEN;
            )*
            assert!(end <= $len, "fields lie inside the structure");
        };
    };
}

pub(crate) use wire_struct;

/// Declares a set of flags: its bits by name, which is also how they are shown.
macro_rules! flag_set {
    (
        $(#[$outer:meta])*
        $name:ident: $integer:ty {
            $($(#[$inner:meta])* $flag:ident = $bit:literal,)*
        }
    ) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub $integer);

        impl $name {
            $($(#[$inner])* pub const $flag: Self = Self(1 << $bit);)*

            /// No flag.
            pub const EMPTY: Self = Self(0);

            /// Whether all of `flags` are set.
            #[must_use]
            pub const fn contains(self, flags: Self) -> bool {
                self.0 & flags.0 == flags.0
            }

            /// These flags and those of `other`.
            #[must_use]
            pub const fn with(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// These flags without those of `other`.
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// The flags that are in both.
            #[must_use]
            pub const fn and(self, other: Self) -> Self {
                Self(self.0 & other.0)
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                self.with(other)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut rest = self.0;
                let mut separator = "";
                for (flag, name) in [$(($name::$flag.0, stringify!($flag))),*] {
                    if rest & flag != 0 {
                        rest &= !flag;
                        write!(f, "{separator}{name}")?;
                        separator = "|";
                    }
                }
                match (rest, separator) {
                    (0, "") => write!(f, "-"),
                    (0, _) => Ok(()),
                    (rest, separator) => write!(f, "{separator}{rest:#x}"),
                }
            }
        }

        impl $crate::wire::Wire for $name {
            const LEN: usize = size_of::<$integer>();

            fn get(bytes: &[u8]) -> Option<Self> {
                <$integer as $crate::wire::Wire>::get(bytes).map(Self)
            }

            fn put(&self, bytes: &mut [u8]) {
                $crate::wire::Wire::put(&self.0, bytes);
            }
        }
    };
}

pub(crate) use flag_set;

#[cfg(test)]
#[expect(unreachable_pub, dead_code, reason = "what the macros make is for everybody")]
mod tests {
    use super::*;

    wire_struct! {
        /// With a hole.
        Sample[16] {
            /// At the start.
            0 => first: u32,
            /// Behind the hole.
            8 => second: u16,
        }
    }

    flag_set! {
        /// Two of 32.
        Flags: u32 {
            /// The lowest.
            LOW = 0,
            /// The highest.
            HIGH = 31,
        }
    }

    #[test]
    fn fields_are_at_their_offsets_and_the_rest_is_zero() {
        let sample = Sample { first: u32::MAX, second: u16::MAX };
        let bytes = sample.encode();
        assert_eq!(bytes, [255, 255, 255, 255, 0, 0, 0, 0, 255, 255, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Sample::get(&bytes), Some(sample));
        assert_eq!(Sample::get(&bytes[1..]), None);
    }

    #[test]
    fn flags_show_their_names() {
        assert_eq!(format!("{:?}", Flags::LOW | Flags::HIGH), "LOW|HIGH");
        assert_eq!(format!("{:?}", Flags(6)), "0x6");
        assert_eq!(format!("{:?}", Flags(3)), "LOW|0x2");
        assert_eq!(format!("{:?}", Flags::EMPTY), "-");
    }
}
