//! `ldmatrix`, `stmatrix`, `movmatrix`, and warps that are not whole.

use super::*;

/// Bytes of shared memory in these tests.
const SHARED: usize = 4096;

/// Copies the buffer `p0` to shared memory, runs `code` with the lane's address of `p1` in `%row`, copies shared memory
/// back to `p0` and the registers `%m0` .. `%m3` to `p2`.
fn shared_kernel(code: &str) -> String {
    let copy = |from: &str, to: &str| {
        format!(
            "mov.u32 %i, %lane;\nLOOP{to}:\nshl.b32 %s, %i, 2;\nmul.wide.u32 %at, %i, 4;\nadd.s64 %at, %at, %p0;\n\
             add.s32 %s, %s, %base;\n{from}add.s32 %i, %i, 32;\nsetp.lt.u32 %q0, %i, {};\n@%q0 bra LOOP{to};\n",
            SHARED / 4
        )
    };
    let inward = copy("ld.global.u32 %v, [%at];\nst.shared.u32 [%s], %v;\n", "IN");
    let outward = copy("ld.shared.u32 %v, [%s];\nst.global.u32 [%at], %v;\n", "OUT");
    let results: String = (0..4).map(|r| format!("st.global.u32 [%at+{}], %m{r};\n", r * 128)).collect();
    kernel(
        3,
        &format!(
            ".shared .align 128 .b8 tile[{SHARED}];\n.reg .b32 %i, %s, %v, %base, %row, %m<4>;\n.reg .pred %q<4>;\n\
             .reg .b64 %wide;\nmov.u32 %base, tile;\n{inward}mov.u32 %m0, 0;\nmov.u32 %m1, 0;\nmov.u32 %m2, 0;\n\
             mov.u32 %m3, 0;\nmul.wide.u32 %at, %lane, 4;\nadd.s64 %at, %at, %p1;\nld.global.u32 %row, [%at];\n\
             add.s32 %row, %row, %base;\n{code}\n{outward}mul.wide.u32 %at, %lane, 4;\nadd.s64 %at, %at, %p2;\n{results}"
        ),
    )
}

struct Access {
    memory: Vec<u8>,
    rows: Vec<u32>,
    registers: Vec<u32>,
}

impl Access {
    /// Random memory and registers, and for each lane a row that overlaps no other.
    fn random(seed: u64) -> Access {
        let mut random = Random::new(seed);
        let memory = (0..SHARED).map(|_| random.next() as u8).collect();
        let mut rows: Vec<u32> = (0..SHARED as u32 / 16).map(|row| row * 16).collect();
        for i in (1..rows.len()).rev() {
            rows.swap(i, random.below(i + 1));
        }
        rows.truncate(32);
        Access { memory, rows, registers: (0..128).map(|_| random.next() as u32).collect() }
    }

    fn run(&mut self, code: &str) -> Result<(), String> {
        let (mut memory, mut rows) = (Buffer::new(&self.memory), Buffer::words(&self.rows));
        let mut registers = Buffer::words(&self.registers);
        let loads: String = (0..4).map(|r| format!("ld.global.u32 %m{r}, [%at+{}];\n", r * 128)).collect();
        let given = format!("mul.wide.u32 %at, %lane, 4;\nadd.s64 %at, %at, %p2;\n{loads}");
        let text = shared_kernel(&format!("{given}{code}"));
        run(&text, 32, &mut [&mut memory, &mut rows, &mut registers])?;
        self.memory = memory.read();
        self.registers = registers.read_words();
        Ok(())
    }

    fn half(&self, matrix: usize, row: usize, column: usize) -> u16 {
        let at = self.rows[matrix * 8 + row] as usize + 2 * column;
        u16::from_le_bytes([self.memory[at], self.memory[at + 1]])
    }

    /// The two elements of a lane: neighbours in a row, or in a column when transposed.
    fn word(&self, matrix: usize, lane: usize, transposed: bool) -> u32 {
        let (line, pair) = (lane / 4, lane % 4 * 2);
        let at = |k| if transposed { self.half(matrix, pair + k, line) } else { self.half(matrix, line, pair + k) };
        u32::from(at(0)) | u32::from(at(1)) << 16
    }
}

const REGISTERS: [(usize, &str, &str); 3] =
    [(1, "x1", "{%m0}"), (2, "x2", "{%m0, %m1}"), (4, "x4", "{%m0, %m1, %m2, %m3}")];

#[test]
fn ldmatrix_reads_rows_at_their_own_addresses() {
    for (count, number, registers) in REGISTERS {
        for (transposed, trans) in [(false, ""), (true, ".trans")] {
            for generic in [false, true] {
                let mut access = Access::random(count as u64);
                let before = access.registers.clone();
                let code = if generic {
                    format!(
                        "mul.wide.u32 %wide, %row, 1;\ncvta.shared.u64 %wide, %wide;\n\
                         ldmatrix.sync.aligned.m8n8.{number}{trans}.b16 {registers}, [%wide];"
                    )
                } else {
                    format!("ldmatrix.sync.aligned.m8n8.{number}{trans}.shared.b16 {registers}, [%row];")
                };
                access.run(&code).unwrap_or_else(|error| panic!("{error}"));
                for (at, word) in access.registers.iter().enumerate() {
                    let (matrix, lane) = (at / 32, at % 32);
                    let want = if matrix < count { access.word(matrix, lane, transposed) } else { before[at] };
                    assert_eq!(*word, want, "{number}{trans}, matrix {matrix}, lane {lane}");
                }
            }
        }
    }
}

#[test]
fn stmatrix_writes_what_ldmatrix_reads() {
    for (count, number, registers) in REGISTERS {
        for (transposed, trans) in [(false, ""), (true, ".trans")] {
            let mut access = Access::random(100 + count as u64);
            let before = access.memory.clone();
            access
                .run(&format!("stmatrix.sync.aligned.m8n8.{number}{trans}.shared::cta.b16 [%row], {registers};"))
                .unwrap_or_else(|error| panic!("{error}"));
            for matrix in 0..count {
                for lane in 0..32 {
                    assert_eq!(access.word(matrix, lane, transposed), access.registers[matrix * 32 + lane]);
                }
            }
            let written: Vec<usize> = access.rows[..8 * count].iter().map(|row| *row as usize / 16).collect();
            for (at, byte) in access.memory.iter().enumerate() {
                assert!(*byte == before[at] || written.contains(&(at / 16)), "byte {at} is none of the matrices");
            }
        }
    }
}

#[test]
fn offsets_of_rows() {
    let mut access = Access::random(7);
    for row in &mut access.rows {
        *row = (*row).min(SHARED as u32 - 48);
    }
    access.run("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%m0, %m1, %m2, %m3}, [%row+32];").expect("no fault");
    for row in &mut access.rows {
        *row += 32;
    }
    for at in 0..128 {
        assert_eq!(access.registers[at], access.word(at / 32, at % 32, false));
    }
}

#[test]
fn movmatrix_transposes() {
    let mut access = Access::random(8);
    let before = access.registers.clone();
    access.run("movmatrix.sync.aligned.m8n8.trans.b16 %m0, %m0;").expect("no fault");
    let half = |words: &[u32], row: usize, column: usize| (words[row * 4 + column / 2] >> (column % 2 * 16)) as u16;
    for (row, column) in (0..64).map(|at| (at / 8, at % 8)) {
        assert_eq!(half(&access.registers, row, column), half(&before, column, row));
    }
}

#[test]
fn addresses_that_are_wrong() {
    let load = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%m0, %m1, %m2, %m3}, [%row];";
    let two = "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%m0, %m1}, [%row];";
    let store = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%row], {%m0, %m1, %m2, %m3};";
    let fault = |code: &str, lane: usize, row: u32| {
        let mut access = Access::random(9);
        access.rows[lane] = row;
        access.run(code).err()
    };
    let misaligned = fault(load, 5, 24).expect("a fault");
    assert!(misaligned.contains("misaligned read of 16 bytes") && misaligned.contains("lane 5"), "{misaligned}");
    let outside = fault(load, 31, SHARED as u32).expect("a fault");
    assert!(outside.contains("offset 4096 of shared memory") && outside.contains("lane 31"), "{outside}");
    let misaligned = fault(store, 17, 8).expect("a fault");
    assert!(misaligned.contains("misaligned write of 16 bytes") && misaligned.contains("lane 17"), "{misaligned}");
    // Lanes whose rows are not used may name anything.
    assert_eq!(fault(two, 16, 3), None);
    assert!(fault(two, 15, 3).is_some());
    let generic = "ldmatrix.sync.aligned.m8n8.x1.b16 {%m0}, [%p0];";
    let outside = fault(generic, 0, 0).expect("a fault");
    assert!(outside.contains("not in shared memory"), "{outside}");
}

const DOUBLE: &str = "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%r0, %r1}, %r2, %r3, {%r0, %r1};";

fn lanes_kernel(before: &str, guard: &str) -> String {
    let code = format!(
        ".reg .b32 %r<8>;\n.reg .pred %q<4>;\nmov.u32 %r0, 0;\nmov.u32 %r1, 0;\nmov.u32 %r2, 16843009;\n\
         mov.u32 %r3, 16843009;\nsetp.lt.u32 %q0, %lane, 16;\n{before}\n{guard}{DOUBLE}\nmul.wide.u32 %at, %lane, 4;\n\
         add.s64 %at, %at, %p0;\nst.global.u32 [%at], %r0;"
    );
    kernel(1, &code)
}

#[test]
fn lanes_that_part_meet_again() {
    let mut out = Buffer::words(&[0; 32]);
    let text = lanes_kernel("@%q0 bra SKIP;\nmov.u32 %r0, 5;\nmov.u32 %r1, 5;\nSKIP:", "");
    for fuzz in [None, Some(1), Some(2), Some(3)] {
        let options = Options { fuzz, ..Options::default() };
        launch(&text, "k", [1, 1, 1], 32, &mut [&mut out], &[], options).expect("no fault");
        let want: Vec<u32> = (0..32).map(|lane| if lane < 16 { 16 } else { 21 }).collect();
        assert_eq!(out.read_words(), want);
    }
}

#[test]
fn warps_that_are_not_whole() {
    let mut out = Buffer::words(&[0; 64]);
    let mut fault = |text: &str, threads: u32| run(text, threads, &mut [&mut out]).expect_err("a fault");
    let exited = fault(&lanes_kernel("@%q0 exit;", ""), 32);
    assert!(exited.contains("all 32 lanes") && exited.contains("0x0000ffff have exited"), "{exited}");
    let small = fault(&lanes_kernel("", ""), 48);
    assert!(small.contains("0xffff0000") && small.contains("multiple of 32 threads"), "{small}");
    // The others go on without it, and exit.
    let guarded = fault(&lanes_kernel("", "@%q0 "), 32);
    assert!(guarded.contains("0xffff0000 have exited"), "{guarded}");
    // Or they wait at the next one for lanes that wait here.
    let apart = fault(&lanes_kernel(&format!("@%q0 bra ELSE;\n{DOUBLE}\nELSE:"), ""), 32);
    assert!(apart.contains("16 of 32 lanes"), "{apart}");
}
