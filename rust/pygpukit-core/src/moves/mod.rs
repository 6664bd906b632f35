//! Elements counted, chosen, moved and made on the host: what the CPU device does for operators whose cost is a call of NumPy.
//!
//! Elements are moved as integers of their size. Addresses are multiples of one byte only, as a slice of a host buffer has
//! them. Every function writes each element of its result once, so a result needs no value before.

mod mask;
mod range;
#[cfg(test)]
mod tests;
mod transpose;
mod window;

pub use mask::{count, places, take};
pub use range::Range;
pub use transpose::Transpose;
pub use window::{Mode, Window};

/// Call a function for the integer of so many bytes; nothing for another size, which no element has.
macro_rules! by_size {
    ($bytes:expr, $function:ident $args:tt) => {
        match $bytes {
            1 => $function::<u8> $args,
            2 => $function::<u16> $args,
            4 => $function::<u32> $args,
            8 => $function::<u64> $args,
            16 => $function::<u128> $args,
            _ => {}
        }
    };
}
use by_size;
