//! Element types.

/// Element type of an array. The codes are part of the Python interface and of fault reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DType {
    Bool = 0,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F16,
    BF16,
    F32,
    F64,
    E4M3,
    E5M2,
    C64,
    C128,
}

/// Broad family of an element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Bool,
    Int,
    UInt,
    Float,
    Complex,
}

impl DType {
    pub const ALL: [DType; 17] = [
        DType::Bool,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
        DType::E4M3,
        DType::E5M2,
        DType::C64,
        DType::C128,
    ];

    pub fn from_code(code: u8) -> Option<DType> {
        DType::ALL.get(code as usize).copied()
    }

    #[inline]
    pub fn code(self) -> u8 {
        self as u8
    }

    #[inline]
    pub fn itemsize(self) -> usize {
        match self {
            DType::Bool | DType::I8 | DType::U8 | DType::E4M3 | DType::E5M2 => 1,
            DType::I16 | DType::U16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::U32 | DType::F32 => 4,
            DType::I64 | DType::U64 | DType::F64 | DType::C64 => 8,
            DType::C128 => 16,
        }
    }

    /// NumPy's (or ml_dtypes') name.
    pub fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::I8 => "int8",
            DType::I16 => "int16",
            DType::I32 => "int32",
            DType::I64 => "int64",
            DType::U8 => "uint8",
            DType::U16 => "uint16",
            DType::U32 => "uint32",
            DType::U64 => "uint64",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::F32 => "float32",
            DType::F64 => "float64",
            DType::E4M3 => "float8_e4m3fn",
            DType::E5M2 => "float8_e5m2",
            DType::C64 => "complex64",
            DType::C128 => "complex128",
        }
    }

    /// Short tag used in kernel symbols and file names.
    pub fn tag(self) -> &'static str {
        match self {
            DType::Bool => "b1",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U8 => "u8",
            DType::U16 => "u16",
            DType::U32 => "u32",
            DType::U64 => "u64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::E4M3 => "e4m3",
            DType::E5M2 => "e5m2",
            DType::C64 => "c64",
            DType::C128 => "c128",
        }
    }

    pub fn kind(self) -> Kind {
        match self {
            DType::Bool => Kind::Bool,
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => Kind::Int,
            DType::U8 | DType::U16 | DType::U32 | DType::U64 => Kind::UInt,
            DType::C64 | DType::C128 => Kind::Complex,
            _ => Kind::Float,
        }
    }

    /// Accepts the full name, the tag and the published alias `float8_e4m3`.
    pub fn from_name(name: &str) -> Option<DType> {
        if name == "float8_e4m3" {
            return Some(DType::E4M3);
        }
        DType::ALL.into_iter().find(|d| d.name() == name || d.tag() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_names_and_tags_are_unique_and_round_trip() {
        for (i, d) in DType::ALL.into_iter().enumerate() {
            assert_eq!(d.code() as usize, i);
            assert_eq!(DType::from_code(d.code()), Some(d));
            assert_eq!(DType::from_name(d.name()), Some(d));
            assert_eq!(DType::from_name(d.tag()), Some(d));
        }
        assert_eq!(DType::from_name("float8_e4m3"), Some(DType::E4M3));
        assert_eq!(DType::from_code(17), None);
    }
}
