//! Integer expressions over sizes and strides, and conditions on them.

use smallvec::SmallVec;

use crate::error::{Error, Result};

/// Index of a node in its program.
pub type NodeId = u16;

/// What each node of a program evaluates to.
pub type Values = SmallVec<[i64; 64]>;

/// One integer: a constant, a variable of the call, or an operation on earlier nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    Const(i64),
    Var(u16),
    Add(NodeId, NodeId),
    Sub(NodeId, NodeId),
    Mul(NodeId, NodeId),
    /// Rounded down, as in Python; 0 for a divisor of 0.
    FloorDiv(NodeId, NodeId),
    /// With the divisor's sign, as in Python; 0 for a divisor of 0.
    Mod(NodeId, NodeId),
    Min(NodeId, NodeId),
    Max(NodeId, NodeId),
}

impl Node {
    fn operands(self) -> Option<[NodeId; 2]> {
        match self {
            Node::Const(_) | Node::Var(_) => None,
            Node::Add(a, b)
            | Node::Sub(a, b)
            | Node::Mul(a, b)
            | Node::FloorDiv(a, b)
            | Node::Mod(a, b)
            | Node::Min(a, b)
            | Node::Max(a, b) => Some([a, b]),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    Equal,
    NotEqual,
    Less,
    LessEqual,
}

/// A condition under which the plan was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    pub relation: Relation,
    pub left: NodeId,
    pub right: NodeId,
}

#[derive(Clone, Debug, Default)]
pub struct Program {
    nodes: Vec<Node>,
    /// Those of them that anything depends on, with their places.
    live: Vec<(NodeId, Node)>,
    guards: Vec<Guard>,
}

impl Program {
    /// Nodes may refer to earlier ones only, and guards to any.
    pub fn new(nodes: Vec<Node>, guards: Vec<Guard>, variables: usize) -> Result<Program> {
        let wrong = |text: String| Err(Error::Value(format!("launch plan: {text}")));
        if nodes.len() > usize::from(NodeId::MAX) {
            return wrong(format!("{} nodes, over {}", nodes.len(), NodeId::MAX));
        }
        for (i, node) in nodes.iter().enumerate() {
            let known = match (*node, node.operands()) {
                (Node::Var(index), _) => usize::from(index) < variables,
                (_, Some([a, b])) => usize::from(a.max(b)) < i,
                _ => true,
            };
            if !known {
                return wrong(format!("node {i} ({node:?}) refers to what does not precede it"));
            }
        }
        if let Some(guard) = guards.iter().find(|g| usize::from(g.left.max(g.right)) >= nodes.len()) {
            return wrong(format!("guard {guard:?} refers to none of the {} nodes", nodes.len()));
        }
        let live = (0..).zip(nodes.iter().copied()).collect();
        Ok(Program { nodes, live, guards })
    }

    /// Evaluate only what these nodes and the guards depend on; the others read as 0.
    pub fn keep(&mut self, roots: impl Iterator<Item = NodeId>) {
        let mut wanted = vec![false; self.nodes.len()];
        for root in roots.chain(self.guards.iter().flat_map(|g| [g.left, g.right])) {
            wanted[usize::from(root)] = true;
        }
        for (i, node) in self.nodes.iter().enumerate().rev() {
            if wanted[i]
                && let Some([a, b]) = node.operands()
            {
                wanted[usize::from(a)] = true;
                wanted[usize::from(b)] = true;
            }
        }
        self.live.retain(|(id, _)| wanted[usize::from(*id)]);
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Evaluate all nodes; false when a guard does not hold. `variables` has as many elements as `new` was told.
    #[inline]
    pub fn run(&self, variables: &[i64], values: &mut Values) -> bool {
        values.clear();
        values.resize(self.nodes.len(), 0);
        for (id, node) in &self.live {
            let at = |id: NodeId| values[usize::from(id)];
            let value = match *node {
                Node::Const(x) => x,
                Node::Var(index) => variables[usize::from(index)],
                Node::Add(a, b) => at(a).wrapping_add(at(b)),
                Node::Sub(a, b) => at(a).wrapping_sub(at(b)),
                Node::Mul(a, b) => at(a).wrapping_mul(at(b)),
                Node::FloorDiv(a, b) => floor_div(at(a), at(b)),
                Node::Mod(a, b) => {
                    at(a).wrapping_sub(floor_div(at(a), at(b)).wrapping_mul(at(b))) * i64::from(at(b) != 0)
                }
                Node::Min(a, b) => at(a).min(at(b)),
                Node::Max(a, b) => at(a).max(at(b)),
            };
            values[usize::from(*id)] = value;
        }
        self.guards.iter().all(|guard| {
            let (left, right) = (values[usize::from(guard.left)], values[usize::from(guard.right)]);
            match guard.relation {
                Relation::Equal => left == right,
                Relation::NotEqual => left != right,
                Relation::Less => left < right,
                Relation::LessEqual => left <= right,
            }
        })
    }
}

#[inline]
fn floor_div(a: i64, b: i64) -> i64 {
    if b == 0 {
        return 0;
    }
    let quotient = a.wrapping_div(b);
    quotient - i64::from(a.wrapping_rem(b) != 0 && (a < 0) != (b < 0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(node: Node, a: i64, b: i64) -> i64 {
        let program = Program::new(vec![Node::Var(0), Node::Var(1), node], Vec::new(), 2).unwrap();
        let mut values = Values::new();
        assert!(program.run(&[a, b], &mut values));
        values[2]
    }

    #[test]
    fn division_rounds_down_as_pythons() {
        for (a, b, quotient, rest) in [(7, 2, 3, 1), (-7, 2, -4, 1), (7, -2, -4, -1), (-7, -2, 3, -1), (5, 0, 0, 0)] {
            assert_eq!((one(Node::FloorDiv(0, 1), a, b), one(Node::Mod(0, 1), a, b)), (quotient, rest), "{a} {b}");
        }
    }

    proptest! {
        #[test]
        fn quotient_and_remainder_make_the_number(a in -1000i64..1000, b in -50i64..50) {
            if b != 0 {
                prop_assert_eq!(one(Node::FloorDiv(0, 1), a, b) * b + one(Node::Mod(0, 1), a, b), a);
            }
        }
    }

    #[test]
    fn a_guard_that_does_not_hold_rejects_the_call() {
        let guards = vec![
            Guard { relation: Relation::Less, left: 0, right: 1 },
            Guard { relation: Relation::NotEqual, left: 0, right: 2 },
        ];
        let program = Program::new(vec![Node::Var(0), Node::Const(10), Node::Const(3)], guards, 1).unwrap();
        let mut values = Values::new();
        assert!(program.run(&[9], &mut values));
        assert!(!program.run(&[10], &mut values));
        assert!(!program.run(&[3], &mut values));
    }

    #[test]
    fn only_what_something_depends_on_is_evaluated() {
        let nodes = vec![Node::Var(0), Node::Var(1), Node::Mul(0, 0), Node::Mul(1, 1), Node::Add(2, 0)];
        let mut program = Program::new(nodes, Vec::new(), 2).unwrap();
        program.keep([4].into_iter());
        let mut values = Values::new();
        assert!(program.run(&[5, 7], &mut values));
        assert_eq!(values.as_slice(), [5, 0, 25, 0, 30]);
    }

    #[test]
    fn nodes_that_refer_forward_or_beyond_the_variables_are_refused() {
        assert!(Program::new(vec![Node::Add(0, 1)], Vec::new(), 0).is_err());
        assert!(Program::new(vec![Node::Var(2)], Vec::new(), 2).is_err());
        let guard = Guard { relation: Relation::Equal, left: 0, right: 4 };
        assert!(Program::new(vec![Node::Const(1)], vec![guard], 0).is_err());
    }
}
