//! What a token passes through: the matrix products of a stack of layers, and the widths of what surrounds them.

use crate::model::family::Model;
use crate::recipe::Recipe;

/// A weight matrix that tokens are multiplied with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    /// Its outputs.
    pub outputs: f64,
    /// Its inputs.
    pub inputs: f64,
    /// How many such matrices there are.
    pub times: f64,
    /// Whether they are experts, of which a token goes to a few: `times` counts all.
    pub expert: bool,
}

impl Product {
    /// Parameters of all of them.
    #[must_use]
    pub fn parameters(&self) -> f64 {
        self.outputs * self.inputs * self.times
    }
}

/// Routed experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Experts of a layer.
    pub count: f64,
    /// Those that a token goes to.
    pub per_token: f64,
    /// Layers that have them.
    pub layers: f64,
}

/// A stack of layers over tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Net {
    /// The products of all layers, the head's apart.
    pub products: Vec<Product>,
    /// Layers.
    pub layers: f64,
    /// Hidden size.
    pub hidden: f64,
    /// Heads × size of a query head.
    pub query: f64,
    /// Heads × size of a value head.
    pub value: f64,
    /// Key heads × size of a key head.
    pub keys: f64,
    /// Query heads.
    pub heads: f64,
    /// The MLPs' inner widths over all layers, of experts those that a token goes to.
    pub inner: f64,
    /// Vocabulary of the head; 0: it has none.
    pub vocabulary: f64,
    /// Inputs of the head.
    pub head_inputs: f64,
    /// Whether the head looks at one position of each sequence alone.
    pub head_per_sequence: bool,
    /// Parameters that are looked up and take part in no product.
    pub looked_up: f64,
    /// Routed experts.
    pub experts: Option<Experts>,
    /// Whether a token attends to those before it alone.
    pub causal: bool,
}

impl Net {
    /// A model's.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "sizes of models are far below 2⁵³, and a time is no exact figure")]
    pub fn of(model: &dyn Model, causal: bool) -> Self {
        let dimensions = model.dimensions();
        let routed = model.routed_experts();
        let symbols = model.symbols(&Recipe::default());
        let symbol = |name: &str| symbols.iter().find(|(symbol, _)| *symbol == name).map(|(_, value)| *value as f64);
        let (hidden, vocabulary) = (dimensions.hidden as f64, dimensions.vocabulary as f64);
        let mut products: Vec<Product> = Vec::new();
        let (mut looked_up, mut head, mut head_inputs) = (0.0, 0.0, hidden);
        for parameter in model.parameters() {
            let sizes: Vec<f64> = parameter.shape.dims().iter().map(|dim| dim.n as f64).collect();
            let (outputs, inputs, times, expert) = match (sizes.as_slice(), routed) {
                (&[rows, columns], _) if parameter.lookup_only => {
                    looked_up += rows * columns;
                    continue;
                }
                // Experts' biases are as many vectors in one.
                (&[_, _], _) if !parameter.linear => continue,
                (&[rows, columns], _) if rows == vocabulary && head == 0.0 => {
                    (head, head_inputs) = (rows, columns);
                    continue;
                }
                (&[inputs, outputs], _) if model.linears_lie_in_out() => (outputs, inputs, 1.0, false),
                (&[outputs, inputs], _) => (outputs, inputs, 1.0, false),
                (&[experts, outputs, inputs], Some(_)) => (outputs, inputs, experts, true),
                _ => continue,
            };
            let same = |p: &&mut Product| (p.outputs, p.inputs, p.expert) == (outputs, inputs, expert);
            match products.iter_mut().find(same) {
                Some(product) => product.times += times,
                None => products.push(Product { outputs, inputs, times, expert }),
            }
        }
        let (layers, query) = (dimensions.layers as f64, dimensions.query_width as f64);
        // The first product onto the hidden width is the attention's last, or one as wide.
        let onto = |p: &&Product| p.outputs == hidden && !p.expert;
        let value = products.iter().find(onto).map_or(query, |p| p.inputs);
        let of_mlps = products.iter().filter(onto).filter(|p| p.inputs != hidden && p.inputs != value);
        let dense: f64 = of_mlps.map(|p| p.inputs * p.times).sum();
        let experts = routed.map(|(per_token, count)| Experts {
            count: count as f64,
            per_token: per_token as f64,
            // Two matrices of experts a layer, whatever their shapes.
            layers: products.iter().filter(|p| p.expert).map(|p| p.times).sum::<f64>() / (2.0 * count as f64),
        });
        // The smaller of an expert's two matrices has its inner width on one side.
        let least = products.iter().filter(|p| p.expert).map(|p| p.outputs * p.inputs).fold(f64::INFINITY, f64::min);
        let routed_inner = experts.map_or(0.0, |e| least / hidden * e.per_token * e.layers);
        Self {
            layers,
            hidden,
            query,
            value,
            keys: symbol("k").unwrap_or(query),
            heads: symbol("a").unwrap_or(1.0),
            inner: dense + routed_inner,
            vocabulary: head,
            head_inputs,
            head_per_sequence: false,
            looked_up,
            experts,
            causal,
            products,
        }
    }

    /// Parameters of the head's product.
    #[must_use]
    pub fn head(&self) -> f64 {
        self.vocabulary * self.head_inputs
    }

    /// Parameters in the products of one token.
    #[must_use]
    pub fn active(&self) -> f64 {
        let share = |p: &Product| self.experts.filter(|_| p.expert).map_or(1.0, |e| e.per_token / e.count);
        self.products.iter().map(|p| p.parameters() * share(p)).sum::<f64>() + self.head()
    }
}
